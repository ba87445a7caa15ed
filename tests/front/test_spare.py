"""The spare engine process: there when the policy wants it, taken by the next load, never in the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from inferd_client import protocol as p
from tests.front.harness import Daemon, Raw, alive, daemon, eventually, worker_pid

NAMES = ["main", "small"]


def engines(running: Daemon) -> set[int]:
    """The engine processes of a daemon, serving or spare."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return {int(pid) for pid in children if b"inferd.engine.scripted" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def spare_bytes(client: Raw) -> int | None:
    """What `status` says the spare process takes."""
    host = next(device for device in client.status().devices if device.name == "cpu")
    return next((line.bytes for line in host.ledger if line.owner == "spare worker"), None)


def pid_of(client: Raw, name: str) -> int | None:
    return next((m.pid for m in client.status().models if m.name == name and m.state == "ready"), None)


def config(policy: str, **settings: object) -> dict[str, object]:
    return {"preload": False, "daemon": {"spare_worker": policy, **settings}}


def test_a_spare_waits_while_no_model_is_loaded_and_serves_the_first() -> None:
    with daemon(models=NAMES, config=config("auto")) as running:
        client = running.client()
        eventually(lambda: spare_bytes(client))
        (spare,) = engines(running)
        assert client.run("hi", model="small")[0] == "hi"
        assert pid_of(client, "small") == spare
        assert spare_bytes(client) is None
        assert engines(running) == {spare}
        client.call(p.Unload(id="u", model="small"))
        eventually(lambda: spare_bytes(client))
        (other,) = engines(running)
        assert other != spare


def test_always_keeps_one_beside_loaded_models() -> None:
    with daemon(models=NAMES, config={"daemon": {"spare_worker": "always"}}) as running:
        client = running.client()
        first = worker_pid(client)
        eventually(lambda: spare_bytes(client))
        (spare,) = engines(running) - {first}
        assert client.run("hi", model="small")[0] == "hi"
        assert pid_of(client, "small") == spare
        eventually(lambda: len(engines(running)) == 3)


@pytest.mark.parametrize("preload", [False, True])
def test_off_means_none(preload: bool) -> None:
    with daemon(models=NAMES, config={**config("off"), "preload": preload}) as running:
        client = running.client()
        assert client.run("hi", model="main")[0] == "hi"
        assert engines(running) == {pid_of(client, "main")}
        client.call(p.Unload(id="u", model="main"))
        assert client.run("hi", model="main")[0] == "hi"


def test_a_dead_worker_is_replaced_and_no_spare_is_left_over() -> None:
    with daemon(models=NAMES, config={"daemon": {"spare_worker": "auto"}}) as running:
        client = running.client()
        first = worker_pid(client)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: (pid_of(client, "main") or first) != first)
        assert client.run("again", model="main")[0] == "again"
        eventually(lambda: engines(running) == {pid_of(client, "main")})


def test_a_dead_spare_costs_nothing_but_time() -> None:
    with daemon(models=NAMES, config=config("auto")) as running:
        client = running.client()
        eventually(lambda: spare_bytes(client))
        (spare,) = engines(running)
        os.kill(spare, signal.SIGKILL)
        eventually(lambda: spare_bytes(client) is None)
        assert client.run("hi", model="small")[0] == "hi"
        client.call(p.Unload(id="u", model="small"))
        eventually(lambda: spare_bytes(client))


def test_a_spare_ends_with_the_daemon() -> None:
    with daemon(models=NAMES, config=config("auto")) as running:
        client = running.client()
        eventually(lambda: spare_bytes(client))
        (spare,) = engines(running)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        eventually(lambda: not alive(spare))
        assert not list(running.runtime.glob("e*.sock"))
    with daemon(models=NAMES, config=config("auto")) as running:
        eventually(lambda: spare_bytes(running.client()))
        (spare,) = engines(running)
        running.signal(signal.SIGKILL)
        running.wait()
        eventually(lambda: not alive(spare))


def test_a_limit_of_memory_is_not_reached_by_the_spare() -> None:
    with daemon(models=NAMES, size=1 << 20, config=config("auto", memory_limit=600 << 20)) as running:
        client = running.client()
        eventually(lambda: spare_bytes(client))
        assert client.run("hi", model="main")[0] == "hi"
