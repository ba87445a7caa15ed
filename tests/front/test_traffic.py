"""The traffic record of a running daemon: lengths, no text, through restarts and kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from inferd.front import traffic as keeper
from inferd.traffic import file
from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Daemon, Raw, daemon, eventually, launch

SECRET = "the quick brown fox has the code 90125"


def state_of(running: Daemon) -> Path:
    return running.runtime.with_name("run-state")


def record_of(client: Raw) -> p.TrafficReport:
    (found,) = client.call(p.Traffic(id="t")).models
    return found


def end(running: Daemon, how: int) -> None:
    for client in running.clients:
        client.close()
    running.clients.clear()
    running.signal(how)
    running.wait()


def test_lengths_times_and_reuse_are_kept(short_folder: Path) -> None:
    with daemon() as running:
        client = running.client()
        client.run("x" * 10, max_tokens=3)
        client.run("y" * 20, max_tokens=5, n=2)
        client.run("z" * 9, max_tokens=3, record=False)
        client.run(prompt=None, prompt_ids=[10**9])
        found = record_of(client)
    assert (found.model, found.requests, found.prompt_tokens) == ("fake", 2, 30)
    assert found.lengths == ((10, 3, 1), (21, 5, 2))
    assert found.ends == {"length": 2}
    assert sum(count for _, count in found.gaps_ms) == 2, "the refused one arrived too"
    assert [entry[1:3] for entry in found.recent] == [(10, 3), (20, 5), (20, 5)]
    assert 0 <= found.recent[1][0] < 60_000


def test_a_cancelled_request_counts_with_what_it_made_and_a_refused_one_does_not() -> None:
    with daemon(delay_s=0.01) as running:
        client = running.client()
        request = client.generate("hello", ignore_eos=True, max_tokens=2000)
        client.until(request, p.Tokens)
        client.call(p.Cancel(id="c", request=request))
        client.finish(request)
        client.run(prompt=None, prompt_ids=[])
        found = record_of(client)
    ((prompt, output, count),) = found.lengths
    assert (prompt, count) == (5, 1)
    assert 1 <= output < 2000
    assert found.ends == {"cancelled": 1}


def test_no_text_is_kept_anywhere(short_folder: Path) -> None:
    """Neither prompt nor output is in anything the daemon leaves, nor in what it answers."""
    running = launch(short_folder / "run", reply=f"answer: {SECRET}")
    client = running.client("tester")
    client.run(SECRET, bad_words=("fox brown",), stop=("hunter2",))
    answer = p.encode(client.call(p.Traffic(id="t")))[1]
    end(running, signal.SIGTERM)
    kept = b"".join(path.read_bytes() for path in state_of(running).rglob("*") if path.is_file())
    assert file.read(state_of(running))[0].requests == 1
    for word in (*SECRET.split(), "answer", "hunter2", "tester"):
        assert word.encode() not in kept
        assert word.encode() not in answer


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_survives_the_end_of_the_daemon(
    short_folder: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launch(short_folder / "run")
    first.client().run("x" * 10, max_tokens=3)
    if how is signal.SIGKILL:  # it is written within a few seconds, not at the end
        eventually(lambda: file.read(state_of(first)), keeper.WRITE_S + WAIT_S)
    end(first, how)
    second = launch(short_folder / "run")
    client = second.client()
    client.run("x" * 10, max_tokens=3)
    assert record_of(client).lengths == ((10, 3, 2),)
    end(second, signal.SIGTERM)
    (report,) = file.read(state_of(second))
    assert report.requests == 2


def test_killed_at_any_moment_the_file_is_whole(short_folder: Path) -> None:
    """A kill between writing and renaming leaves the part beside the old file, which stands."""
    state = short_folder / "run-state"
    first = launch(short_folder / "run")
    first.client().run("x" * 10, max_tokens=3)
    end(first, signal.SIGTERM)
    (state / f"{file.FILE}.part").write_bytes(b'{"version":1,"mod')
    second = launch(short_folder / "run")
    assert record_of(second.client()).requests == 1
    end(second, signal.SIGTERM)


def test_a_damaged_file_is_put_aside(short_folder: Path) -> None:
    state = short_folder / "run-state"
    state.mkdir()
    (state / file.FILE).write_bytes(b"nonsense")
    running = launch(short_folder / "run")
    client = running.client()
    assert client.call(p.Traffic(id="t")).models == ()
    client.run("x" * 10, max_tokens=3)
    end(running, signal.SIGTERM)
    assert (state / f"{file.FILE}.damaged").read_bytes() == b"nonsense"
    assert file.read(state)[0].requests == 1
    assert "starts anew" in running.logged()


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_record(short_folder: Path) -> None:
    (short_folder / "run-state").write_text("in the way")
    running = launch(short_folder / "run")
    client = running.client()
    text, done = client.run("hello")
    assert (text, done.reason) == ("hello", "stop")
    assert record_of(client).requests == 1
    assert "stays in memory" in running.logged()
    end(running, signal.SIGTERM)


def test_a_second_daemon_does_not_touch_the_record_of_the_first(short_folder: Path) -> None:
    first = launch(short_folder / "run")
    first.client().run("x" * 10, max_tokens=3)
    os.symlink(short_folder / "run-state", short_folder / "two-state")
    second = launch(short_folder / "two")
    second.client().run("y" * 40, max_tokens=3)
    assert record_of(second.clients[0]).lengths == ((43, 3, 1),)
    end(second, signal.SIGTERM)
    end(first, signal.SIGTERM)
    assert file.read(short_folder / "run-state")[0].lengths == ((10, 3, 1),)


def test_models_that_rest_keep_their_record(short_folder: Path) -> None:
    """Only what changed is encoded anew; the rest must still be in every file, also after a restart."""
    running = launch(short_folder / "run", models=["a", "b"])
    client = running.client()
    client.run("x" * 10, max_tokens=3, model="a")
    client.run("x" * 20, max_tokens=3, model="b")
    end(running, signal.SIGTERM)
    running = launch(short_folder / "run", models=["a", "b"])
    running.client().run("x" * 20, max_tokens=3, model="b")
    end(running, signal.SIGTERM)
    assert {r.model: r.lengths for r in file.read(state_of(running))} == {"a": ((10, 3, 1),), "b": ((21, 3, 2),)}


def test_clearing(short_folder: Path) -> None:
    running = launch(short_folder / "run", models=["a", "b"])
    client = running.client()
    for model in ("a", "b"):
        client.run("x" * 10, max_tokens=3, model=model)
    assert [r.model for r in client.call(p.Traffic(id="1", clear=True, model="a")).models] == ["a"]
    assert record_of(client).model == "b"
    client.call(p.Traffic(id="2", clear=True))
    assert client.call(p.Traffic(id="3")).models == ()
    assert file.read(state_of(running)) == []
    end(running, signal.SIGTERM)


def test_switched_off_nothing_is_kept(short_folder: Path) -> None:
    running = launch(short_folder / "run", config={"traffic": {"record": False}})
    client = running.client()
    client.run("hello")
    reply = client.call(p.Traffic(id="t"))
    assert (reply.enabled, reply.models) == (False, ())
    end(running, signal.SIGTERM)
    assert not state_of(running).exists()
