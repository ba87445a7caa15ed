"""Several models of one daemon: memory, idle time, loading and unloading in odd orders, and the default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd_client import Client, ModelLoadFailed, Overloaded, ServerShutdown, UnknownModel
from inferd_client.results import Completion
from tests.e2e import oracle
from tests.e2e.conftest import ENGINE, copy_of
from tests.e2e.harness import (
    WAIT_S,
    Background,
    Served,
    alive,
    descendants,
    eventually,
    model_of,
    module_of,
    ready,
    serving,
    the_model,
)
from tests.e2e.trap_plugin.inferd_trap import SLOW
from tests.smollm2 import smollm2_path

pytestmark = pytest.mark.daemon

MIB = 1 << 20
LIMIT = 1060 * MIB
"""Room for three engines of nothing but a process (320 MiB), if two of them take a small pool only."""
PROMPT = [31, 9, 250, 60, 61, 62]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
ENDLESS: dict[str, Any] = GREEDY | {"allowed_token_ids": [SLOW], "max_tokens": 2000}


@pytest.fixture(scope="module")
def models(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    for name in ("first", "small", "large", "fourth"):
        copy_of(tiny, folder, name)
    return folder


@pytest.fixture(scope="module")
def several(models: Path, site: Path) -> Iterator[Served]:
    config = {
        "engine": ENGINE | {"kv_blocks": 512},
        "plugins": {"attention": "trap"},
        "daemon": {"memory_limit": LIMIT},
        # A pool of all sequences would be 2 GiB: the grant decides.
        "models": {"large": {"engine": {"kv_blocks": 0, "max_sequences": 1024, "token_budget": 1024}}},
    }
    with serving(models / "first", config, site) as daemon:
        ready(daemon.client(), "first")
        yield daemon


@pytest.fixture
def client(several: Served) -> Iterator[Client]:
    with several.client() as client:
        yield client


def workers(daemon: Served) -> set[int]:
    return {pid for pid in descendants(daemon.pid) if module_of(pid) == "inferd.engine.worker"}


def test_memory_is_granted_refused_with_numbers_and_made_room_for(
    several: Served, models: Path, client: Client
) -> None:
    small = ready(client, str(models / "small"))
    busy = client.generate(PROMPT, model="small", stream=True, **ENDLESS)
    next(busy)
    client.load(str(models / "fourth"))
    fourth = client.generate(PROMPT, model="fourth", stream=True, **ENDLESS)
    next(fourth)
    with pytest.raises(ModelLoadFailed) as caught:
        client.generate(PROMPT, model=str(models / "large"))
    for part in ("320 MiB", "limit 1060 MiB", "first 32", "small 32", "fourth 32"):
        assert part in str(caught.value)
    assert model_of(client, "large") is None
    fourth.close()
    client.unload("fourth", force=True)
    busy.close()

    eventually(lambda: not client.status().requests)
    large = ready(client, str(models / "large"))
    assert large.shape_origin["num_blocks"] == "memory grant"
    (device,) = client.status().devices
    assert sum(entry.bytes for entry in device.ledger) <= LIMIT
    assert {"first", "large"} <= {entry.owner for entry in device.ledger}
    want = client.generate(PROMPT, max_tokens=8, **GREEDY).ids
    assert client.generate(PROMPT, model="large", max_tokens=8, **GREEDY).ids == want

    # The default stays; who was idle for longest makes room.
    client.load("fourth")
    assert {m.name: m.state for m in client.status().models} == dict.fromkeys(("first", "large", "fourth"), "ready")
    assert small.pid is not None
    assert not alive(small.pid)
    assert len(workers(several)) == 3
    client.unload("large")


def test_an_idle_model_leaves_and_returns_when_it_is_asked_for(several: Served, models: Path, client: Client) -> None:
    path = str(models / "small")
    first = client.generate(PROMPT, model=path, max_tokens=8, keep_alive_s=0.3, **GREEDY)
    pid = status.pid if (status := model_of(client, "small")) else None
    eventually(lambda: model_of(client, "small") is None)
    assert pid is None or not alive(pid)
    assert client.generate(PROMPT, model="small", max_tokens=8, **GREEDY).ids == first.ids
    assert client.unload("small") == "unloaded"


def test_loads_and_unloads_in_odd_orders_are_all_answered(several: Served, models: Path, client: Client) -> None:
    for name in ("small", "fourth"):
        client.unload(name)
    loading = Background(lambda: several.client().load(str(models / "small")))
    eventually(lambda: model_of(client, "small"))
    queued = Background(lambda: several.client().load(str(models / "fourth")))
    eventually(lambda: model_of(client, "fourth"))
    waiting = client.generate(PROMPT, model="fourth", stream=True, max_tokens=1)
    eventually(lambda: any(request.model == "fourth" for request in client.status().requests))
    assert client.unload("fourth") == "unloaded"
    assert client.unload("small") == "unloaded"
    answers = [call.outcome() for call in (queued, Background(waiting.result), loading)]
    for answer in answers:  # on a machine that dozes between two lines a load may have been quicker
        assert isinstance(answer, (ModelLoadFailed, Completion)) or answer == "loaded"
    assert client.unload("small") == "not loaded"

    assert client.load(str(models / "small")) == "loaded"
    assert client.load("small") == "already loaded"
    busy = client.generate(PROMPT, model="small", stream=True, **ENDLESS)
    next(busy)
    leaving = Background(lambda: several.client().unload("small"))
    eventually(lambda: the_model(client, "small").state == "draining")
    for call in (lambda: client.load("small"), lambda: client.generate(PROMPT, model="small")):
        with pytest.raises(Overloaded) as caught:
            call()
        assert caught.value.retry_after
    assert client.unload("small", force=True) == "unloaded"
    assert leaving.result() == "unloaded"
    assert busy.result().finish == "cancelled"

    with several.client() as hasty:
        Background(lambda: hasty.load("small"))
        eventually(lambda: model_of(client, "small"))
    assert client.load("small") in ("loaded", "already loaded"), "who asked first is gone, the load goes on"
    assert client.unload("") == "unloaded"
    assert not client.status().ready
    assert client.generate(PROMPT, max_tokens=2, **GREEDY).finish == "length"
    assert client.status().ready


@pytest.mark.parametrize("name", ["nonsense", "/etc", "/etc/passwd.gguf", "./relative", "../../etc", "a\nb", "x" * 500])
def test_what_is_no_model_is_unknown(client: Client, name: str) -> None:
    with pytest.raises(UnknownModel):
        client.generate(PROMPT, model=name)


def test_a_drain_answers_who_waits_for_a_load(models: Path, tiny: Path, site: Path) -> None:
    with serving(tiny, {"engine": ENGINE}, site) as daemon:
        client = daemon.client()
        early = client.generate(PROMPT, stream=True, max_tokens=3, **GREEDY)
        eventually(lambda: client.status().requests)
        loading = Background(lambda: daemon.client().load(str(models / "small")))
        eventually(lambda: model_of(client, "small"))
        client.drain()
        assert early.result().finish == "length", "it was accepted before"
        answer = loading.outcome()  # where the machine paused, the load may have been quicker
        assert isinstance(answer, ServerShutdown) or answer == "loaded"
        assert daemon.process.wait(WAIT_S) == 0


@pytest.mark.smollm2
def test_the_default_model_by_its_name() -> None:
    path = smollm2_path()
    with serving(None, {"engine": {"threads": 1, "max_context": 512, "max_sequences": 4}}) as daemon:
        client = daemon.client()
        answer = client.chat("What is the capital of France?", max_tokens=8, temperature=0)
        rendered = client.render("What is the capital of France?")
        (want,) = oracle.of_gguf(path, [rendered.ids], len(answer.ids))
        assert tuple(answer.ids[: len(want.ids)]) == want.ids
        assert "Paris" in answer.text
        status = the_model(client, "smollm2-135m")
        assert (status.plugins["quantizer"], status.architecture) == ("gguf", "llama")
        assert (status.weights_note, status.exactness) == ("", "approximate")  # packed, rows rounded
        assert [m.name for m in client.models() if m.default] == ["smollm2-135m"]
