"""Several steps of the compiled kernels in one call: the same tokens, keys and values as one step a call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from inferd.link import Submit
from tests.equivalence.models import PROMPTS
from tests.equivalence.rig import Rig, build, submit
from tests.tiny import tiny_gguf

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "n": 3},
    {"temperature": 2.5, "eos_ids": tuple(range(40, 120))},
    {"temperature": 2.5, "stop_token_ids": tuple(range(100, 160)), "n": 2},
    {"temperature": 1.5, "max_tokens": 1},
    {"temperature": 1.5, "top_p": 0.9, "max_tokens": 2},
)
LONG = 10_000.0
"""Milliseconds: as many steps as a call can take."""
SIZES: tuple[dict[str, Any], ...] = ({}, {"batch": 3}, {"blocks": 20, "batch": 4}, {"threads": 2})


def engine(path: Path, limit_ms: float, **sizes: Any) -> Rig:
    options: dict[str, Any] = {"batch": 16, "threads": 1, "multi_step_ms": limit_ms} | sizes
    rig = build(path, linear="native", plugins={"attention": "cpu"}, **options)
    assert rig.card.eager_because == ""
    return rig


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("multi"), quant="Q4_1", hidden=64, heads=4, kv_heads=2, rope_theta=50.0)


def requests(turn: str) -> list[Submit]:
    fields = [{"max_tokens": 24, **kind} for kind in KINDS]
    return [submit(f"{turn}{i}", PROMPTS[i % len(PROMPTS)], seed=50 + i, **kind) for i, kind in enumerate(fields)]


def most_at_once(rig: Rig) -> int:
    return max(len(output.ids) for report in rig.reports for output in report.outputs)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_clients_hear_the_same(quantized: Path, sizes: dict[str, Any]) -> None:
    single, several = engine(quantized, 0.0, **sizes), engine(quantized, LONG, **sizes)
    for turn in ("cold", "warm"):
        want, got = single.run(requests(turn)), several.run(requests(turn))
        assert {at: (r.ids, r.finish) for at, r in got.items()} == {at: (r.ids, r.finish) for at, r in want.items()}
        assert {r.finish for r in got.values()} == {"stop", "length"}
    several.assert_empty()
    assert most_at_once(single) == 1
    assert most_at_once(several) > 2
    single.engine.close()
    several.engine.close()


def test_what_is_kept_of_them_is_the_same(quantized: Path) -> None:
    """A conversation goes on from keys and values that calls of several steps wrote, surplus ones included."""
    told: list[list[object]] = []
    for limit in (0.0, LONG):
        rig = engine(quantized, limit)
        first = rig.run(requests("first"))
        hits = rig.hits
        asked = [[*PROMPTS[i % len(PROMPTS)], *first[f"first{i}", 0].ids] for i in range(len(KINDS))]
        second = rig.run([submit(f"second{i}", tokens, 6, logprobs=20) for i, tokens in enumerate(asked)])
        assert rig.hits > hits + 20
        told.append([(result.ids, result.logprobs) for result in second.values()])
        rig.engine.close()
    assert told[0] == told[1]


def test_a_message_ends_a_call_after_the_step_that_runs(quantized: Path) -> None:
    rig = engine(quantized, LONG)
    want = rig.run(requests("quiet"))
    there, sender = os.pipe()
    rig.tap.inner.watch(there)
    rig.reports.clear()
    again = rig.run(requests("open"))
    assert most_at_once(rig) > 4, "nothing has come"
    os.write(sender, b"x")
    rig.reports.clear()
    disturbed = rig.run(requests("noisy"))
    assert most_at_once(rig) == 1
    os.close(there)
    os.close(sender)
    for other in (again, disturbed):
        assert [result.ids for result in other.values()] == [result.ids for result in want.values()]
    rig.engine.close()


@pytest.mark.parametrize("why", ["draft", "recompute", "float"])
def test_some_engines_take_a_step_a_call(quantized: Path, why: str) -> None:
    pins = {"draft": "ngram"} if why == "draft" else {"kv": "recompute"} if why == "recompute" else {}
    linear = "torch" if why == "float" else "native"
    rig = build(quantized, linear=linear, plugins={"attention": "cpu", **pins}, multi_step_ms=LONG, threads=1)
    rig.run([submit("a", PROMPTS[0], 12)])
    assert all(report.stats.decode_tokens <= 1 + report.stats.drafted for report in rig.reports)
    rig.engine.close()
