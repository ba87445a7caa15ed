"""Processes of a real daemon that die, hang or load rubbish. Everybody gets an answer, and service goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd_client import Client, Code, DaemonError, EngineLost, InferdError, ModelLoadFailed, ServerShutdown
from tests.e2e import oracle
from tests.e2e.conftest import ENGINE, copy_of
from tests.e2e.harness import (
    WAIT_S,
    Background,
    Served,
    alive,
    counters,
    descendants,
    eventually,
    idle,
    kill,
    launch,
    model_of,
    module_of,
    ready,
    serving,
    the_model,
)
from tests.e2e.trap_plugin.inferd_trap import RAISE, SEGV, SLOW, STICKY

pytestmark = pytest.mark.daemon

PROMPT = [31, 9, 250, 60, 61, 62]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
ENDLESS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "allowed_token_ids": [SLOW], "max_tokens": 2000}
"""A request whose every step is slow."""


@pytest.fixture(scope="module")
def answer(tiny: Path) -> list[int]:
    return list(oracle.of_folder(tiny, [PROMPT], 8)[0].ids)


@pytest.fixture(scope="module")
def models(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the tiny model, each to be hurt in its own way."""
    folder = tmp_path_factory.mktemp("faulty")
    for name in ("main", "segv", "dying", "raising", "cut"):
        copy_of(tiny, folder, name)
    weights = folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return folder


@pytest.fixture(scope="module")
def faulty(models: Path, site: Path) -> Iterator[Served]:
    config = {
        "engine": ENGINE | {"max_sequences": 2, "chunk": 8},
        "plugins": {"attention": "trap"},
        "daemon": {"stall_s": 4.0},
        "models": {name: {"plugins": {"attention": name}} for name in ("dying", "raising")},
    }
    with serving(models / "main", config, site) as daemon:
        yield daemon


@pytest.fixture
def client(faulty: Served) -> Iterator[Client]:
    with faulty.client() as client:
        yield client


def test_kill_9_of_the_worker_with_requests_in_queue_prefill_and_decode(
    faulty: Served, client: Client, answer: list[int]
) -> None:
    before = ready(client, "main")
    decoding = client.generate(PROMPT, stream=True, **ENDLESS)
    next(decoding)
    prefilling = client.generate([SLOW] * 3000, stream=True, **GREEDY)
    eventually(lambda: the_model(client, "main").prefilling)
    queued = client.generate(PROMPT, stream=True, max_tokens=4, **GREEDY)
    eventually(lambda: the_model(client, "main").waiting)
    assert before.pid is not None
    kill(before.pid)
    lost = [Background(stream.result).error() for stream in (decoding, prefilling, queued)]
    assert all(isinstance(error, EngineLost) and "SIGKILL" in str(error) for error in lost)
    assert [error.retry_safe for error in lost if isinstance(error, EngineLost)] == [False, True, True]
    partial = lost[0].partial if isinstance(lost[0], EngineLost) else None
    assert partial is not None
    assert set(partial.ids) == {SLOW}
    assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer
    after = the_model(client, "main")
    assert (after.restarts, after.pid != before.pid) == (1, True)
    idle(client, "main")


def test_a_client_library_that_may_retry_hides_the_death_of_the_engine(faulty: Served, answer: list[int]) -> None:
    from inferd_client import RetryPolicy

    with faulty.client(retry=RetryPolicy(tries=5)) as client:
        pid = ready(client, "main").pid
        while True:
            call = Background(lambda: client.generate([SLOW] * 128 + PROMPT, max_tokens=2, **GREEDY))
            if eventually(lambda: the_model(client, "main").prefilling or not call.is_alive()) is not True:  # noqa: B023
                break  # else a pause has hidden it
        assert pid is not None
        kill(pid)
        assert len(call.result().ids) == 2
        assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer


def test_kill_9_of_the_text_process_is_not_noticed(faulty: Served, client: Client) -> None:
    before = client.chat("hello", max_tokens=4, **GREEDY)
    restarts = counters(client.status(), "inferd_text_restarts_total")
    for _ in range(2):
        kill(faulty.children()["inferd.text"])
        assert client.chat("hello", max_tokens=4, **GREEDY).ids == before.ids
    assert counters(client.status(), "inferd_text_restarts_total") == restarts + 2


def test_a_plugin_that_segfaults_in_prefill_ends_its_engine_and_is_refused_in_the_end(
    models: Path, client: Client, answer: list[int]
) -> None:
    client.load(str(models / "segv"))
    for _ in range(2):
        good = client.generate(PROMPT, stream=True, model="segv", **ENDLESS)
        next(good)
        with pytest.raises(EngineLost, match="SIGSEGV"):
            client.generate([SEGV, 5, 6], model="segv", seed=1)
        assert isinstance(Background(good.result).error(), EngineLost)
        assert client.generate(PROMPT, model="segv", max_tokens=8, **GREEDY).ids == answer
    beside = client.generate(PROMPT, stream=True, model="segv", max_tokens=8, **GREEDY)
    with pytest.raises(EngineLost, match="refused") as caught:
        client.generate([SEGV, 5, 6], model="segv", seed=1)
    assert not caught.value.retry_safe
    assert beside.result().ids == answer
    assert the_model(client, "segv").restarts == 2


def test_what_a_plugin_raises_is_told_to_the_client(models: Path, client: Client) -> None:
    client.load(str(models / "segv"))
    with pytest.raises(EngineLost, match="RuntimeError: the trap was sprung"):
        client.generate([RAISE, 5, 6], model="segv")
    assert "the trap was sprung" in eventually(lambda: the_model(client, "segv").detail)
    client.unload("segv", force=True)
    assert model_of(client, "segv") is None


def test_an_error_of_the_device_ends_its_worker_and_no_other(models: Path, client: Client, answer: list[int]) -> None:
    """CUDA's errors stick: the process can do nothing more, so it must not be kept."""
    other = ready(client, "main").pid
    client.load(str(models / "segv"))
    before = the_model(client, "segv")
    beside = client.generate(PROMPT, stream=True, **ENDLESS)
    with_it = client.generate(PROMPT, stream=True, model="segv", **ENDLESS)
    next(beside), next(with_it)
    with pytest.raises(EngineLost, match="AcceleratorError: CUDA error: an illegal memory access") as caught:
        client.generate([STICKY, 5, 6], model="segv")
    assert caught.value.retry_safe
    lost = Background(with_it.result).error()
    assert isinstance(lost, EngineLost)
    assert not lost.retry_safe
    assert client.generate(PROMPT, model="segv", max_tokens=8, **GREEDY).ids == answer
    after = the_model(client, "segv")
    assert (after.restarts, after.pid == before.pid) == (before.restarts + 1, False)
    assert next(beside)
    assert the_model(client, "main").pid == other
    client.cancel(beside)
    client.unload("segv", force=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cut", r"model\.safetensors"),
        ("dying", "SIGKILL"),
        pytest.param("raising", "KeyError: 'a layout it forgot'", marks=pytest.mark.full),
    ],
)
def test_a_model_that_cannot_be_loaded_fails_with_the_reason(
    models: Path, client: Client, answer: list[int], name: str, why: str
) -> None:
    with pytest.raises(ModelLoadFailed, match=why):
        client.generate(PROMPT, model=str(models / name))
    failed = the_model(client, name)
    assert (failed.state, failed.pid) == ("failed", None)
    restarts = counters(client.status(), "inferd_worker_restarts_total")
    with pytest.raises(ModelLoadFailed, match=why):
        client.generate(PROMPT, model=name)
    assert counters(client.status(), "inferd_worker_restarts_total") == restarts, "it was not tried again"
    assert any(name in warning for warning in client.status().warnings)
    assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer
    client.unload(name)
    assert model_of(client, name) is None


def test_a_stopped_worker_is_reported_and_goes_on(client: Client, answer: list[int]) -> None:
    pid = ready(client, "main").pid
    assert pid is not None
    stream = client.generate(PROMPT, stream=True, max_tokens=60, **GREEDY)
    next(stream)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: any("stalled" in warning for warning in client.status().warnings))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert stream.result().ids[:8] == answer
    eventually(lambda: not any("stalled" in warning for warning in client.status().warnings))


def test_kill_9_of_a_rank_and_of_the_front_leaves_no_process_and_the_next_daemon_starts(
    tiny: Path, site: Path, answer: list[int]
) -> None:
    config = {"engine": ENGINE, "plugins": {"attention": "trap", "parallel": "layers"}}
    with serving(tiny, config, site) as daemon:
        client = daemon.client()
        ready(client, str(tiny))
        assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer
        stream = client.generate(PROMPT, stream=True, **ENDLESS)
        next(stream)
        family = descendants(daemon.pid)
        assert {module_of(pid) for pid in family} == {"inferd.engine.worker", "inferd.engine.rank", "inferd.text"}
        kill(daemon.children()["inferd.engine.rank"])
        with pytest.raises(EngineLost):
            stream.result()
        assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer

        stream = client.generate(PROMPT, stream=True, **ENDLESS)
        next(stream)
        family += descendants(daemon.pid)
        kill(daemon.pid)
        eventually(lambda: not any(alive(pid) for pid in family))
        daemon.process.wait()
        second = launch(daemon.folder, tiny, config | {"plugins": {}}, site)
        try:
            error = Background(stream.result).error()
            assert isinstance(error, InferdError)
            assert error.partial is not None
            assert error.partial.ids
            assert client.generate(PROMPT, max_tokens=8, **GREEDY).ids == answer
        finally:
            second.close()


def test_sigterm_with_twenty_streams(tiny: Path, site: Path) -> None:
    config = {"engine": ENGINE | {"max_sequences": 20}, "plugins": {"attention": "trap"}, "daemon": {"drain_s": WAIT_S}}
    with serving(tiny, config, site) as daemon:
        client, late = daemon.client(), daemon.client("late")
        ready(late, str(tiny))
        short = [client.generate([i + 10] * 5, stream=True, max_tokens=10, **GREEDY) for i in range(10)]
        endless = [client.generate([i + 10] * 5, stream=True, **ENDLESS) for i in range(10)]
        for stream in endless:
            next(stream)
        family = descendants(daemon.pid)
        daemon.process.terminate()
        eventually(lambda: late.status().state == "draining")
        with pytest.raises(ServerShutdown):
            late.generate(PROMPT, max_tokens=1)
        assert [stream.result().finish for stream in short] == ["length"] * 10
        daemon.process.terminate()  # the second time means now
        for stream in endless:
            error = Background(stream.result).error()
            assert isinstance(error, ServerShutdown)
            assert error.partial is not None
            assert error.partial.ids
        assert daemon.process.wait(WAIT_S) == 0
        assert not any(alive(pid) for pid in family)
        assert [path.name for path in daemon.runtime.iterdir()] == ["inferd.lock"]


def test_errors_have_codes(client: Client) -> None:
    with pytest.raises(DaemonError) as caught:
        client.generate(PROMPT, model="nonsense")
    assert caught.value.code == Code.UNKNOWN_MODEL
