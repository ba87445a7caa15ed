"""A small share of the fuzz run, and proof that the run sees what it looks for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.fuzz import campaign
from tests.bench.fuzz.live import Attacker, GoodClient
from tests.bench.fuzz.mutate import MAX_BYTES, mutate, mutate_value
from tests.bench.fuzz.targets import TARGETS, Target, outcome_of
from tests.e2e.harness import ready, serving
from tests.tiny import tiny_llama

INPROCESS = [name for name, target in TARGETS.items() if not target.may_die]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Target, list[bytes]]]:
    found = {name: TARGETS[name](tmp_path_factory.mktemp(name)) for name in INPROCESS}
    return {name: (target, target.seeds()) for name, target in found.items()}


@pytest.mark.parametrize("name", INPROCESS)
def test_seeds_are_valid(name: str, targets: dict[str, tuple[Target, list[bytes]]]) -> None:
    target, seeds = targets[name]
    assert any(target.read(seed) == "" for seed in seeds)


@pytest.mark.parametrize("name", INPROCESS)
@settings(max_examples=60, deadline=None, database=None)
@given(number=st.integers(0, 10**9))
def test_any_input_is_refused_or_read(name: str, targets: dict[str, tuple[Target, list[bytes]]], number: int) -> None:
    """What is raised here is a fault: each target turns the errors that callers expect into text."""
    target, seeds = targets[name]
    start = time.process_time()
    target.read(target.change(Random(number), seeds))
    assert time.process_time() - start < 20 * target.seconds


@settings(max_examples=100, deadline=None, database=None)
@given(st.integers(0, 10**9), st.binary(max_size=200))
def test_mutations_are_bounded_and_repeatable(number: int, data: bytes) -> None:
    once, again = (mutate(Random(number), data, [data, b"other"], [b"token"]) for _ in range(2))
    assert once == again
    assert len(once) <= MAX_BYTES


def test_mutations_change_every_part_of_a_tree() -> None:
    tree = {"a": 1, "b": ["x", {"c": None}], "d": 2.5}
    changed = [mutate_value(Random(i), tree) for i in range(400)]
    assert tree == {"a": 1, "b": ["x", {"c": None}], "d": 2.5}
    dicts = [c for c in changed if isinstance(c, dict)]
    assert {k for c in dicts for k in ("a", "b", "d") if c.get(k) != tree[k]} == {"a", "b", "d"}
    assert any(isinstance(c.get("b"), list) and len(c["b"]) == 2 and c["b"][1] != {"c": None} for c in dicts)
    assert sum(c == tree for c in changed) < 40


def test_kinds_of_errors_leave_out_names_and_numbers() -> None:
    assert outcome_of("tensor 'a' at 17") == outcome_of("tensor 'bc' at 3")
    assert outcome_of("tensor 'a' at 17") != outcome_of("tensor 'a' ends at 17")


def test_faults_deaths_and_slowness_are_found_with_their_inputs(tmp_path: Path) -> None:
    found = campaign.run("tests.bench.fuzz.fragile:Fragile", 150, 1, tmp_path / "kept")
    assert found.inputs == 150
    by_input: dict[bytes, str] = {bytes.fromhex(f["input"]): json.dumps(f) for f in found.faults}
    assert set(by_input) == {b"7", b"11", b"13", b"17"}
    assert "KeyError" in by_input[b"7"]
    assert "ended with 3" in by_input[b"11"]
    assert "ended with -11" in by_input[b"13"]
    assert "seconds" in by_input[b"17"]
    kept = {path.read_bytes() for path in (tmp_path / "kept").glob("*.bin")}
    assert kept == set(by_input)


def test_what_may_die_is_only_counted(tmp_path: Path) -> None:
    found = campaign.run("tests.bench.fuzz.fragile:Apart", 60, 1, tmp_path / "kept")
    assert found.inputs == 60
    assert found.deaths > 0
    assert {bytes.fromhex(f["input"]) for f in found.faults} <= {b"7", b"17"}


@pytest.mark.daemon
def test_a_real_daemon_under_fire(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny", context=512)
    with serving(model, {"engine": {"threads": 1, "max_sequences": 4, "kv_blocks": 128}}) as daemon:
        ready(daemon.client(), str(model))
        good = GoodClient(daemon)
        good.start()
        attacker = Attacker(daemon.runtime, Random(1))
        attacker.attack(400)
        attacker.close()
        good.stop()
        assert attacker.sent.messages == 400
        assert attacker.sent.silences == 0
        assert attacker.sent.answers["invalid_param"] > 20
        assert attacker.sent.answers["Accepted"] > 0
        assert (good.differed, good.failed) == (0, [])
        assert good.asked > 0
        assert "handler failed" not in daemon.logged()


def test_no_hostile_message_ends_the_daemon_on_purpose() -> None:
    from tests.bench.fuzz import live

    kinds = {msgspec.msgpack.decode(body)["type"] for body in (*live._golden(), *live._sound())}
    assert kinds == set(live.SAFE)
