"""Several models: load on demand, memory, idle unload, unloading by hand."""

from __future__ import annotations

import os
import signal

import pytest

from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Raw, alive, daemon, eventually, worker_pid

MIB = 1 << 20
NAMES = ["main", "small", "large"]


def states(client: Raw) -> dict[str, str]:
    return {m.name: m.state for m in client.status().models}


def config(limit_mib: int = 0, **settings: object) -> dict[str, object]:
    return {"daemon": {"memory_limit": limit_mib * MIB, **settings}}


def test_a_model_loads_when_it_is_asked_for_and_says_so() -> None:
    with daemon(models=NAMES, load_s=0.3) as running:
        client = running.client()
        worker_pid(client)
        assert states(client) == {"main": "ready"}
        request = client.generate("hi", model="small")
        progress = client.until(request, p.Progress)
        assert (progress.state, progress.total) == ("loading", progress.total)
        client.finish(request)
        assert client.text(request) == "hi"
        assert states(client) == {"main": "ready", "small": "ready"}
        listed = {m.name: (m.loaded, m.default) for m in client.call(p.Models(id="m")).models}
        assert listed == {"main": (True, True), "small": (True, False), "large": (False, False)}


def test_text_calls_need_no_engine() -> None:
    with daemon(models=NAMES, config={"preload": False}) as running:
        client = running.client()
        client.send(p.Tokenize(id="t", text="ab", model="large"))
        assert client.until("t", p.Tokenized).ids == [97, 98]
        client.send(p.Tokenize(id="u", text="ab", model="nonsense"))
        assert client.until("u", p.Error).code == p.Code.UNKNOWN_MODEL
        assert states(client) == {}


def test_the_model_idle_for_longest_makes_room_and_the_default_never() -> None:
    with daemon(models=NAMES, size=100 * MIB, config=config(1500)) as running:
        client = running.client()
        worker_pid(client)
        assert client.run("1", model="small")[0] == "1"
        assert client.run("2", model="large")[0] == "2"
        ledger = client.status().devices[0].ledger
        assert [entry.owner for entry in ledger] == ["main", "small", "large"]
        assert {entry.bytes for entry in ledger} == {420 * MIB}
    with daemon(models=NAMES, size=100 * MIB, config=config(1200)) as running:
        client = running.client()
        worker_pid(client)
        assert client.run("1", model="small")[0] == "1"
        small = next(m for m in client.status().models if m.name == "small").pid
        assert client.run("2", model="large")[0] == "2"
        assert states(client) == {"main": "ready", "large": "ready"}
        assert not alive(small)


def test_a_busy_model_is_never_unloaded_and_the_refusal_shows_the_ledger() -> None:
    with daemon(models=NAMES, size=100 * MIB, delay_s=0.01, config=config(1200)) as running:
        client = running.client()
        worker_pid(client)
        busy = client.generate("b", model="small", ignore_eos=True)
        client.until(busy, p.Tokens)
        error = client.finish(client.generate("x", model="large"))
        assert error.code == p.Code.MODEL_LOAD_FAILED
        for part in ("420 MiB", "limit 1200 MiB", "main 420 MiB", "small 420 MiB"):
            assert part in error.message
        client.call(p.Cancel(id="c", request=busy))
        assert client.finish(busy).reason == "cancelled"
        assert client.run("2", model="large")[0] == "2"


def test_the_worker_is_told_its_grant() -> None:
    seen: set[int] = set()
    for _ in range(10):  # a pause as long as the load hides the grant
        with daemon(models=["main"], size=100 * MIB, load_s=0.5, config=config(1200)) as running:
            client = running.client()
            (entry,) = eventually(lambda: client.status().devices[0].ledger)  # noqa: B023
            seen.add(entry.bytes)
            worker_pid(client)
            seen.add(client.status().devices[0].ledger[0].bytes)
        if len(seen) == 2:
            break
    assert seen == {1200 * MIB, 420 * MIB}


def test_an_idle_model_unloads_after_its_keep_alive() -> None:
    with daemon(models=NAMES) as running:
        client = running.client()
        worker_pid(client)
        client.run("1", model="small", keep_alive_s=50.0)
        client.run("1", model="large", keep_alive_s=-1.0)
        small = next(m for m in client.status().models if m.name == "small")
        assert small.expires_s is None or small.expires_s <= 50.0
        client.run("1", model="small", keep_alive_s=0.3)
        eventually(lambda: "small" not in states(client))
        assert not alive(small.pid)
        assert states(client) == {"main": "ready", "large": "ready"}
        assert all(m.expires_s is None for m in client.status().models)
        assert client.run("again", model="small")[0] == "again"


def test_unload_waits_for_what_runs_and_refuses_new_work() -> None:
    with daemon(models=NAMES, delay_s=0.01) as running:
        client = running.client()
        worker_pid(client)
        request = client.generate("abc", model="small", ignore_eos=True)
        client.until(request, p.Tokens)
        pid = next(m for m in client.status().models if m.name == "small").pid
        client.control.send_multipart(p.encode(p.Unload(id="u", model="small")))
        eventually(lambda: states(client)["small"] == "draining")
        late = client.finish(client.generate("late", model="small"))
        assert (late.code, bool(late.retry_after_ms)) == (p.Code.OVERLOADED, True)
        client.call(p.Cancel(id="c", request=request))
        assert client.finish(request).reason == "cancelled"
        eventually(lambda: not alive(pid))
        eventually(lambda: states(client) == {"main": "ready"})
        assert client.run("back", model="small")[0] == "back"


def test_unload_by_force_cancels_and_answers_when_the_memory_is_free() -> None:
    with daemon(models=NAMES, delay_s=0.01) as running:
        client = running.client()
        worker_pid(client)
        request = client.generate("abc", model="small", ignore_eos=True)
        client.until(request, p.Tokens)
        pid = next(m for m in client.status().models if m.name == "small").pid
        assert client.call(p.Unload(id="u", model="small", force=True)).detail == "unloaded"
        assert not alive(pid)
        assert client.finish(request).reason == "cancelled"
        assert [entry.owner for entry in client.status().devices[0].ledger] == ["main"]
        assert client.call(p.Unload(id="v", model="small")).detail == "not loaded"


def test_unloading_the_default_by_hand_works_and_it_returns_on_demand() -> None:
    with daemon() as running:
        client = running.client()
        worker_pid(client)
        assert client.call(p.Unload(id="u", model="fake")).detail == "unloaded"
        assert states(client) == {}
        assert not client.status().ready
        assert client.run("back")[0] == "back"


def test_unload_of_a_worker_that_does_not_answer_kills_it() -> None:
    with daemon() as running:
        client = running.client()
        pid = worker_pid(client)
        os.kill(pid, signal.SIGSTOP)
        assert client.call(p.Unload(id="u", model="fake")).detail == "unloaded"
        assert not alive(pid)


def test_unload_during_a_load_ends_it() -> None:
    with daemon(models=NAMES, load_s=600) as running:
        client = running.client()
        request = client.generate("x")
        client.until(request, p.Progress)
        answer = client.call(p.Unload(id="u", model="main", force=True))
        assert answer.detail == "unloaded"
        assert client.finish(request).reason == "cancelled"


def test_a_load_that_takes_too_long_fails() -> None:
    with daemon(load_s=600, config={"daemon": {"load_timeout_s": 0.3}}) as running:
        client = running.client()
        error = client.finish(client.generate("x"))
        assert error.code == p.Code.MODEL_LOAD_FAILED
        assert "0.3 s" in error.message


def test_load_by_hand_and_its_refusals() -> None:
    with daemon(models=NAMES) as running:
        client = running.client()
        worker_pid(client)
        assert client.call(p.Load(id="a", model="small")) == p.Ok(id="a", detail="loaded")
        assert client.call(p.Load(id="b", model="small")).detail == "already loaded"
        assert client.call(p.Load(id="c", model="nonsense")).code == p.Code.UNKNOWN_MODEL


@pytest.mark.parametrize("preload", [True, False])
def test_preload_is_a_setting(preload: bool) -> None:
    with daemon(config={"preload": preload}) as running:
        client = running.client()
        if preload:
            worker_pid(client)
        else:
            assert states(client) == {}
        assert client.run("x")[0] == "x"


def test_model_changes_are_published() -> None:
    import zmq

    context = zmq.Context()
    with daemon(config={"preload": False}) as running:
        socket = context.socket(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(f"ipc://{running.runtime / 'events.sock'}")
        assert socket.poll(WAIT_S * 1000)
        seen = [p.decode(socket.recv_multipart(), p.event_decoder)]
        running.client().run("x")
        while not (isinstance(seen[-1], p.ModelEvent) and seen[-1].state == "ready"):
            assert socket.poll(WAIT_S * 1000)
            seen.append(p.decode(socket.recv_multipart(), p.event_decoder))
        context.destroy(linger=0)
    assert isinstance(seen[0], p.StatusReply)
    events = [(e.name, e.state) for e in seen if isinstance(e, p.ModelEvent)]
    assert events[0] == ("fake", "loading")
    assert [e.seq for e in seen] == list(range(seen[0].seq, seen[0].seq + len(seen)))
