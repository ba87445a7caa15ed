"""Both clients against the real front over a scripted engine, started as an application's test would."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import inferd_client as ic
from inferd_client import protocol as p
from inferd_client.testing import FakeDaemon

from .test_clients import WAIT_S, wait_for

SLOW = {"reply": "word " * 4000, "delay_s": 0.01, "context": 1_000_000}
"""Answers that do not end while a test runs."""


def worker_pid(daemon: FakeDaemon) -> int:
    daemon.wait_ready()
    pid = daemon.client().status().models[0].pid
    assert pid is not None
    return pid


@pytest.fixture(scope="module")
def echo():
    """A daemon that says prompts back, shared by tests that do not harm it."""
    with FakeDaemon() as daemon:
        yield daemon


def test_generate_chat_and_text_calls(echo):
    client = echo.client()
    result = client.generate("grüße", request_id="mine")
    assert (result.text, result.finish, result.id) == ("grüße", "stop", "mine")
    assert result.usage.completion_tokens == len(result.ids)
    pieces = list(client.generate("grüße", stream=True))
    assert "".join(str(piece) for piece in pieces) == "grüße"
    assert [i for piece in pieces for i in piece.ids] == result.ids
    rendered = client.render("hi")
    assert "hi" in client.chat("hi").text
    assert client.chat("hi").prompt_tokens == len(rendered.ids)
    assert client.tokenize("ab") == [97, 98]


@pytest.mark.parametrize("n", [1, 3])
def test_usage_equals_the_ids_received(echo, n):
    """Case 8.6: nothing is counted or delivered twice, whole or streamed, ended or cut."""
    client = echo.client()
    for options in ({}, {"max_tokens": 3}, {"stop": "cd"}):
        whole = client.generate("abcdef", n=n, **options)
        stream = client.generate("abcdef", n=n, stream=True, **options)
        ids = sum(len(piece.ids) for piece in stream)
        assert ids == stream.result().usage.completion_tokens
        assert whole.usage.completion_tokens == sum(len(choice.ids) for choice in whole.choices) == ids
        assert [choice.text for choice in whole.choices] == [choice.text for choice in stream.completion.choices]
        assert all(choice.finish for choice in whole.choices)


def test_a_cancelled_request_is_counted_once_too():
    with FakeDaemon(SLOW) as daemon:
        client = daemon.client()
        stream = client.generate("x", stream=True)
        ids = [i for _, piece in zip(range(3), stream, strict=False) for i in piece.ids]
        client.cancel(stream)
        ids += [i for piece in stream for i in piece.ids]
        result = stream.result()
        assert result.finish == "cancelled"
        assert result.usage.completion_tokens == len(ids) == len(result.ids)


def test_reports(echo):
    client = echo.client()
    echo.wait_ready()
    status = client.status()
    assert (status.ready, status.default_model, status.pid) == (True, "fake", echo.pid)
    assert status.instance == client.daemon.instance
    assert [model.name for model in client.models()] == ["fake"]
    assert isinstance(client.plugins(), tuple)


def test_snapshots_arrive_and_a_closed_stream_ends(echo):
    with echo.client().events(timeout=WAIT_S) as events:
        first = next(event for event in events if isinstance(event, p.StatusReply))
        assert first.pid == echo.pid
        second = next(event for event in events if isinstance(event, p.StatusReply))
        assert second.seq > first.seq
    assert list(events) == []

    async def main():
        async with echo.async_client() as client, client.events(timeout=WAIT_S) as stream:
            async for event in stream:
                if isinstance(event, p.StatusReply):
                    return event.pid
        return None

    assert asyncio.run(main()) == echo.pid


def test_refusals_name_field_and_limit(echo):
    client = echo.client()
    with pytest.raises(ic.ContextExceeded) as caught:
        client.generate("x", max_tokens=5000)
    assert caught.value.field == "max_tokens"
    with pytest.raises(ic.InvalidParam):
        client.generate("")
    with pytest.raises(ic.InvalidParam) as caught:
        client.generate("x", logit_bias={10**6: 1.0})
    assert caught.value.field == "logit_bias"
    with pytest.raises(ic.UnknownModel):
        client.generate("x", model="other")


def test_eight_interleaved_iterators_and_two_calls_end(echo):
    """Case 4.11."""
    client = echo.client()
    for _ in range(2):
        streams = {name: client.generate(name * 20, stream=True) for name in "abcdefgh"}
        texts = dict.fromkeys(streams, "")
        open_streams = list(streams)
        while open_streams:
            for name in list(open_streams):
                piece = next(streams[name], None)
                if piece is None:
                    open_streams.remove(name)
                else:
                    texts[name] += piece.text
        assert texts == {name: name * 20 for name in "abcdefgh"}


def test_leaving_a_stream_frees_its_slot_at_once():
    with FakeDaemon({**SLOW, "max_sequences": 1}) as daemon:
        client = daemon.client()
        with client.generate("long", stream=True) as stream:
            next(stream)
            assert len(client.status().requests) == 1
        wait_for(lambda: not client.status().requests)
        assert client.generate("x", max_tokens=1).finish == "length"


def test_an_engine_that_dies_before_output_is_retried_and_after_output_is_not():
    with FakeDaemon({**SLOW, "faults": [{"match": "boom", "kind": "die", "after": 3}]}) as daemon:
        client = daemon.client()
        daemon.wait_ready()
        with pytest.raises(ic.EngineLost) as caught:
            client.generate("boom")
        assert caught.value.partial.text.startswith("wo")
        assert not caught.value.retry_safe
        daemon.wait_ready()
        assert client.generate("x", max_tokens=2).finish == "length"


def test_overload_is_retried_until_there_is_room():
    config = {"daemon": {"max_queue": 1}}
    with FakeDaemon(
        {"reply": "ab", "delay_s": 0.05, "max_sequences": 1, "context": 1_000_000}, config=config
    ) as daemon:
        daemon.wait_ready()
        with daemon.client(retry=ic.NO_RETRY) as impatient, daemon.client(retry=ic.RetryPolicy(tries=50)) as patient:
            running = impatient.generate("x", stream=True, ignore_eos=True)
            next(running)
            queued = impatient.generate("x", stream=True)
            wait_for(lambda: len(impatient.status().requests) == 2)
            with pytest.raises(ic.Overloaded) as caught:
                impatient.generate("x")
            assert caught.value.retry_after > 0

            def make_room(progress: p.Progress) -> None:
                if "overloaded" in progress.reason:
                    running.close()

            assert patient.generate("x", on_progress=make_room).text == "ab"
            assert queued.result().text == "ab"


def test_a_killed_daemon_ends_streams_and_its_successor_serves():
    with FakeDaemon(SLOW) as daemon:
        client = daemon.client()
        stream = client.generate("x", stream=True)
        next(stream)
        instance = client.daemon.instance
        daemon.kill()
        threading.Timer(0.2, daemon.start).start()
        with pytest.raises(ic.ServerRestarted) as caught:
            stream.result()
        assert not caught.value.retry_safe
        assert caught.value.partial.text
        assert client.generate("x", max_tokens=1).finish == "length"
        assert client.daemon.instance != instance


def test_a_request_can_follow_the_daemon_through_a_restart():
    policy = ic.RetryPolicy(codes=frozenset({ic.Code.SERVER_RESTARTED, ic.Code.SERVER_SHUTDOWN}))
    with FakeDaemon({"faults": [{"match": "wait", "kind": "silent"}]}) as daemon:
        client = daemon.client(retry=policy)
        daemon.wait_ready()
        stream = client.generate("wait", stream=True)
        wait_for(lambda: client.status().requests)
        daemon.kill()
        daemon.script(faults=None)
        assert stream.result().text == "wait"


def test_a_stopped_daemon_is_told_apart_within_the_connect_timeout():
    with FakeDaemon() as daemon:
        client = daemon.client()
        client.status()
        daemon.kill()
        with pytest.raises(ic.ConnectionFailed, match="inferd serve"):
            client.generate("x", timeouts=ic.Timeouts(connect=0.3))


def test_twenty_reconnects_show_no_foreign_text():
    """Case 6.6: each client sees its own answers only, however the others left."""
    with FakeDaemon({"delay_s": 0.001}) as daemon:
        for i in range(20):
            client = daemon.client()
            stream = client.generate(f"<{i}>" * 50, stream=True)
            assert next(stream).text == "<"
            client.close()
            with daemon.client() as other:
                assert other.generate(f"[{i}]").text == f"[{i}]"
        with daemon.client() as last:
            wait_for(lambda: not last.status().requests)


def test_a_client_killed_in_mid_stream_is_cancelled():
    """Case 4.6."""
    program = """
        import sys, time
        from inferd_client import Client
        stream = Client(sys.argv[1]).generate("x", stream=True, ignore_eos=True)
        next(stream)
        print("started", flush=True)
        time.sleep(60)
    """
    with FakeDaemon({"reply": "y", "delay_s": 0.01, "context": 1_000_000}) as daemon:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(daemon.runtime)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        child.kill()
        child.wait()
        child.stdout.close()
        with daemon.client() as client:
            wait_for(lambda: not client.status().requests)


def test_an_interrupt_in_a_stream_cancels_it():
    program = """
        import sys
        from inferd_client import Client
        client = Client(sys.argv[1])
        try:
            with client.generate("x", stream=True, ignore_eos=True) as stream:
                for piece in stream:
                    print("piece", flush=True)
        except KeyboardInterrupt:
            print("left", stream.completion.finish, flush=True)
            while client.status().requests:
                pass
            print("gone", flush=True)
    """
    with FakeDaemon({"reply": "y", "delay_s": 0.05, "context": 1_000_000}) as daemon:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(daemon.runtime)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=WAIT_S)
        assert output.decode().splitlines()[-2:] == ["left cancelled", "gone"]


def test_a_fork_makes_its_own_connection_and_leaves_the_parents_alone(echo):
    client = echo.client()
    stream = client.generate("parent" * 10, stream=True)
    next(stream)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, client.generate("child").text.encode())
            client.close()
            del stream
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert pipe.read() == "child"
    os.waitpid(pid, 0)
    assert stream.result().text == "parent" * 10
    assert client.generate("still").text == "still"


def test_a_daemon_that_cannot_start_says_why():
    with pytest.raises(ic.testing.FakeDaemonError, match="no_such_setting"), FakeDaemon({"no_such_setting": 1}):
        pass


def test_the_daemon_ends_with_the_process_that_started_it():
    program = """
        import os, sys
        from inferd_client.testing import FakeDaemon
        daemon = FakeDaemon().start()
        print(daemon.pid, daemon.runtime, flush=True)
        os._exit(1)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, timeout=WAIT_S)
    pid, runtime = run.stdout.decode().split()

    def is_gone() -> bool:
        try:
            return b"inferd" not in open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            return True

    wait_for(is_gone)
    shutil.rmtree(os.path.dirname(runtime), ignore_errors=True)


def test_an_engine_killed_before_output_costs_a_retry_and_no_error():
    with FakeDaemon({"reply": "ab"}) as daemon:
        client = daemon.client()
        os.kill(worker_pid(daemon), signal.SIGSTOP)
        reasons: list[str] = []
        stream = client.generate("x", stream=True, on_progress=lambda progress: reasons.append(progress.reason))
        wait_for(lambda: any(request.state == "waiting" for request in client.status().requests))
        daemon.kill_worker()
        assert stream.result().text == "ab"
        assert any(reason.startswith("engine_lost") for reason in reasons)


def test_models_are_loaded_and_unloaded():
    with FakeDaemon({"models": ["a", "b"], "load_s": 3.0}, config={"preload": False}) as daemon:
        client = daemon.client(timeouts=ic.Timeouts(idle=2.5))
        client.load("b")
        states = {model.name: model.state for model in client.status().models}
        assert states["b"] == "ready"
        assert client.generate("x", model="b", timeouts=ic.Timeouts()).text == "x"
        client.unload("b")
        assert "b" not in {model.name for model in client.status().models if model.state == "ready"}
        with pytest.raises(ic.UnknownModel):
            client.load("c")


def test_drain_lets_the_running_finish_and_refuses_the_rest():
    with FakeDaemon({"reply": "word " * 10, "delay_s": 0.02}) as daemon:
        client = daemon.client()
        stream = client.generate("x", stream=True)
        next(stream)
        worker = worker_pid(daemon)
        os.kill(worker, signal.SIGSTOP)  # so that it does not end meanwhile
        client.drain(WAIT_S)
        with pytest.raises(ic.ServerShutdown):
            client.generate("y")
        os.kill(worker, signal.SIGCONT)
        assert stream.result().text == "word " * 10
        wait_for(lambda: daemon.pid is None)


def test_events_outlive_a_restart():
    with FakeDaemon() as daemon, daemon.client().events(timeout=WAIT_S) as events:
        first = next(event for event in events if isinstance(event, p.StatusReply))
        daemon.restart()
        second = next(e for e in events if isinstance(e, p.StatusReply) and e.instance != first.instance)
        assert second.pid == daemon.pid


def test_events_without_a_daemon_fail_with_the_remedy(runtime):
    with ic.Client(runtime) as client, pytest.raises(ic.ConnectionFailed, match="inferd serve"):
        next(client.events())
