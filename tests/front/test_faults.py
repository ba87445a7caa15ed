"""Processes that die, hang or talk nonsense: everybody gets an answer and the daemon goes on."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from inferd_client import protocol as p
from tests.front.harness import KILL, Raw, alive, daemon, eventually, streaming, worker_pid

FAULTS = [
    {"match": "die-now", "kind": "die"},
    {"match": "segv-now", "kind": "segv"},
    {"match": "die-later", "kind": "die", "after": 3},
    {"match": "hang-now", "kind": "hang"},
    {"match": "silent", "kind": "silent"},
    {"match": "slowfill", "kind": "slow_prefill", "seconds": 600},
]


def model(client: Raw) -> p.ModelStatus:
    return client.status().models[0]


def test_kill_9_of_the_worker_ends_its_requests_and_it_returns() -> None:
    with daemon(delay_s=0.01, max_sequences=1) as running:
        client = running.client()
        pid = worker_pid(client)
        begun = client.generate("abc", ignore_eos=True)
        client.until(begun, p.Tokens)
        waiting = client.generate("xyz")
        client.until(waiting, p.Accepted)
        os.kill(pid, KILL)
        first, second = client.finish(begun), client.finish(waiting)
        assert first.code == second.code == p.Code.ENGINE_LOST
        assert "SIGKILL" in first.message
        assert not first.retry_safe
        assert first.usage.completion_tokens == len([i for m in client.tokens(begun) for i in m.ids])
        assert second.retry_safe
        assert client.run("after")[0] == "after"
        assert worker_pid(client) != pid
        assert model(client).restarts == 1
        assert not alive(pid)


def test_all_that_a_worker_said_before_its_end_is_told_after_a_pause_of_the_front() -> None:
    with daemon(
        delay_s=0.002, context=100_000, faults=[{"match": "die-later", "kind": "die", "after": 400}]
    ) as running:
        client = running.client()
        pid = worker_pid(client)
        request = client.generate("die-later", ignore_eos=True)
        client.until(request, p.Tokens)
        running.signal(signal.SIGSTOP)
        eventually(lambda: not alive(pid))
        running.signal(signal.SIGCONT)
        assert client.finish(request).code == p.Code.ENGINE_LOST
        assert sum(len(m.ids) for m in client.tokens(request)) > 200, "as much as the connection holds"


def test_requests_not_yet_in_the_engine_survive_its_death() -> None:
    with daemon(load_s=0.5, config={"preload": False}) as running:
        client = running.client()
        request = client.generate("early")
        assert client.until(request, p.Progress).state == "loading"
        os.kill(eventually(lambda: model(client).pid), KILL)
        client.finish(request)
        assert client.text(request) == "early"


@pytest.mark.parametrize("poison", ["segv-now", "die-now", "die-later"])
def test_a_poison_request_beside_good_ones_is_refused_in_the_end(poison: str) -> None:
    with daemon(delay_s=0.005, faults=FAULTS) as running:
        client = running.client()
        for attempt in range(2):
            pid = worker_pid(client)
            good = client.generate(f"good {attempt}", ignore_eos=True)
            client.until(good, p.Tokens)
            bad = client.generate(poison, seed=1)
            assert client.finish(bad).code == p.Code.ENGINE_LOST
            assert client.finish(good).code == p.Code.ENGINE_LOST
            eventually(lambda pid=pid: not alive(pid))
        pid = worker_pid(client)
        third = client.finish(client.generate(poison, seed=1))
        assert (third.code, third.retry_safe) == (p.Code.ENGINE_LOST, False)
        assert "refused" in third.message
        assert ("last: SIGSEGV" if poison == "segv-now" else "last: ") in third.message
        assert client.run("good 0")[0] == "good 0"
        assert worker_pid(client) == pid
        assert model(client).restarts == 2


def test_a_worker_that_dies_at_every_load_is_given_up_with_the_reason() -> None:
    with daemon(die_at_load=99) as running:
        client = running.client()
        error = client.finish(client.generate("x"))
        assert error.code == p.Code.MODEL_LOAD_FAILED
        assert "exit code 13" in error.message
        failed = model(client)
        assert (failed.state, failed.pid) == ("failed", None)
        assert not client.status().ready
        restarts = client.status().counters["inferd_worker_restarts_total"]
        again = client.finish(client.generate("y"))
        assert again.code == p.Code.MODEL_LOAD_FAILED
        assert client.status().counters["inferd_worker_restarts_total"] == restarts, "it was not tried again"
        assert any("failed" in w for w in client.status().warnings)


def test_a_load_error_is_told_and_a_second_try_may_succeed() -> None:
    with daemon(fail_at_load=1) as running:
        assert running.client().run("second try")[0] == "second try"
    with daemon(fail_at_load=2) as running:
        client = running.client()
        error = client.finish(client.generate("x"))
        assert "blk.0 is missing" in error.message
        assert client.call(p.Load(id="l", model="fake")) == p.Ok(id="l", detail="loaded")
        assert client.run("by hand")[0] == "by hand"


def test_three_deaths_in_a_minute_are_the_end() -> None:
    with daemon() as running:
        client = running.client()
        for _ in range(3):
            pid = worker_pid(client)
            os.kill(pid, KILL)
            eventually(lambda pid=pid: model(client).pid != pid)
        eventually(lambda: model(client).state == "failed")
        assert client.finish(client.generate("x")).code == p.Code.MODEL_LOAD_FAILED


def test_a_hung_worker_is_reported_and_then_replaced() -> None:
    with daemon(config={"daemon": {"stall_s": 1.5}}, faults=FAULTS) as running:
        client = running.client()
        pid = worker_pid(client)
        error = client.finish(client.generate("hang-now"))
        assert error.code == p.Code.ENGINE_LOST
        assert "no step for" in error.message
        events = [json.loads(line)["event"] for line in running.logged().splitlines()]
        assert events.index("engine stalled") < events.index("engine lost")
        assert not alive(pid)
        assert client.run("fresh")[0] == "fresh"


def test_a_stopped_worker_leaves_status_cancel_and_deadline_working() -> None:
    with daemon(delay_s=0.005) as running:
        client = running.client()
        pid = worker_pid(client)
        cancelled = client.generate("a", ignore_eos=True)
        client.until(cancelled, p.Tokens)
        os.kill(pid, signal.SIGSTOP)
        late = client.generate("b", ignore_eos=True, deadline_ms=700)
        assert client.status()
        client.call(p.Cancel(id="c", request=cancelled))
        assert client.finish(cancelled).reason == "cancelled"
        assert client.finish(late).code == p.Code.DEADLINE_EXCEEDED
        os.kill(pid, signal.SIGCONT)
        assert client.run("goes on")[0] == "goes on"


def test_no_child_outlives_a_killed_front() -> None:
    with daemon(faults=FAULTS) as running:
        client = running.client()
        children = [worker_pid(client), *_children(running.pid)]
        client.generate("hang-now")
        client.receive()
        assert len(set(children)) == 2
        running.signal(KILL)
        eventually(lambda: not any(alive(pid) for pid in children))


def test_after_kill_9_of_the_front_the_next_one_starts_on_the_stale_files() -> None:
    from tests.front.harness import launch

    with daemon() as running:
        worker_pid(running.client())
        running.signal(KILL)
        running.wait()
        assert (running.runtime / "data.sock").exists()
        second = launch(running.runtime)
        try:
            assert second.client().run("again")[0] == "again"
            second.signal(signal.SIGTERM)
            assert second.wait() == 0
            assert sorted(path.name for path in running.runtime.iterdir()) == ["inferd.lock"]
        finally:
            second.process.kill()
            for client in second.clients:
                client.close()


class TestText:
    def test_kill_9_of_the_text_process_is_not_noticed_by_requests(self) -> None:
        with daemon() as running:
            client = running.client()
            worker = worker_pid(client)
            for text in ("one", "two"):
                (pid,) = set(_children(running.pid)) - {worker}
                os.kill(pid, KILL)
                said, end = client.run(text)
                assert said == text, end
            assert client.status().counters["inferd_text_restarts_total"] == 2

    def test_a_template_that_hangs_is_ended_and_the_rest_answered(self) -> None:
        with daemon(config={"text": {"timeout_s": 3.0}}) as running:
            client = running.client()
            worker_pid(client)
            hung = [client.generate("<hang>") for _ in range(3)]
            behind = [client.generate(f"behind {i}") for i in range(3)]
            assert client.status()
            for request in hung:
                error = client.finish(request)
                assert (error.code, error.field) == (p.Code.INVALID_PARAM, "prompt")
                assert "3 s" in error.message
            for i, request in enumerate(behind):
                client.finish(request)
                assert client.text(request) == f"behind {i}"

    def test_a_text_that_hangs_delays_no_other_of_its_model(self) -> None:
        """Neither its own client's nor, however many one client sends, those of others."""
        with daemon(config={"text": {"timeout_s": 600}}) as running:
            client, other = running.client("client"), running.client("other")
            worker_pid(client)
            hung = [client.generate("<hang>")]
            for i in range(3):
                assert client.run(f"beside {i}")[0] == f"beside {i}"
            hung += [client.generate("<hang>") for _ in range(9)]
            for i in range(3):
                assert other.run(f"beside {i}")[0] == f"beside {i}"
            assert {r.state for r in client.status().requests} == {"text"}
            for request in hung:
                client.call(p.Cancel(id=f"c{request}", request=request))
                assert client.finish(request).reason == "cancelled"
            assert client.run("a cancelled text frees its worker")[0]
            assert "inferd_text_restarts_total" not in client.status().counters

    def test_kill_9_of_the_workers_of_the_text_process(self) -> None:
        with daemon(config={"text": {"timeout_s": 600}}) as running:
            client = running.client()
            (text,) = set(_children(running.pid)) - {worker_pid(client)}
            client.run("makes a worker")
            (idle,) = _children(text)
            os.kill(idle, KILL)
            assert client.run("another")[0] == "another"
            before = client.status().counters.get("inferd_text_restarts_total", 0)
            hang = client.generate("<hang>")
            eventually(lambda: client.status().requests)
            while client.status().requests:  # a worker may be killed before it has the job
                for pid in _children(text):
                    with suppress(ProcessLookupError):
                        os.kill(pid, KILL)
                eventually(lambda: _children(text) or not client.status().requests)
            error = client.finish(hang)
            assert (error.code, "twice" in error.message) == (p.Code.INVALID_PARAM, True)
            assert client.status().counters["inferd_text_restarts_total"] == before + 2
            assert text in _children(running.pid)

    def test_a_text_that_hangs_delays_its_own_model_only(self) -> None:
        with daemon(models=["one", "two"], config={"text": {"timeout_s": 60}}) as running:
            client = running.client()
            worker_pid(client)
            client.run("loads", model="two")
            hang = client.generate("<hang>")
            for i in range(3):
                assert client.run(f"beside {i}", model="two")[0] == f"beside {i}"
            client.call(p.Cancel(id="c", request=hang))
            assert client.finish(hang).reason == "cancelled"

    def test_a_text_that_kills_the_process_fails_alone(self) -> None:
        with daemon() as running:
            client = running.client()
            worker_pid(client)
            bad, good = client.generate("<die>"), client.generate("fine")
            assert client.finish(bad).code == p.Code.INVALID_PARAM
            client.finish(good)
            assert client.text(good) == "fine"

    def test_a_cancelled_request_in_the_text_process_is_forgotten(self) -> None:
        with daemon(config={"text": {"timeout_s": 3.0}}) as running:
            client = running.client()
            worker_pid(client)
            request = client.generate("<hang>")
            eventually(lambda: client.status().requests)
            client.call(p.Cancel(id="c", request=request))
            assert client.finish(request).reason == "cancelled"
            assert client.run("next")[0] == "next"


class TestGoneClients:
    @pytest.mark.parametrize("prompt", ["slowfill", "abc"])
    def test_the_work_of_a_killed_client_ends(self, prompt: str) -> None:
        with daemon(delay_s=0.01, faults=FAULTS, context=100_000) as running:
            watcher = running.client("watcher")
            worker_pid(watcher)
            victim = running.client("victim")
            request = victim.generate(prompt, ignore_eos=True)
            victim.until(request, p.Tokens if prompt == "abc" else p.Accepted)
            eventually(lambda: model(watcher).running == 1)
            victim.close()
            eventually(lambda: model(watcher).running == 0 and not watcher.status().requests)
            assert watcher.run("mine")[0] == "mine"

    def test_queued_requests_of_a_killed_client_vanish(self) -> None:
        with daemon(delay_s=0.01, max_sequences=1, context=100_000) as running:
            mine, victim = running.client("mine"), running.client("victim")
            worker_pid(mine)
            running_one = mine.generate("m", ignore_eos=True)
            mine.until(running_one, p.Tokens)
            for _ in range(5):
                victim.until(victim.generate("v"), p.Accepted)
            eventually(lambda: model(mine).waiting == 5)
            victim.close()
            eventually(lambda: model(mine).waiting == 0)
            mine.call(p.Cancel(id="c", request=running_one))
            assert mine.finish(running_one).reason == "cancelled"

    def test_a_client_that_stops_reading_loses_its_request_only(self) -> None:
        faults = [{"match": "huge", "kind": "huge"}]
        with daemon(faults=faults, context=10**8) as running:
            watcher = running.client("watcher")
            worker_pid(watcher)
            before = _rss(running.pid)
            sleeper = running.client("sleeper")
            request = sleeper.generate("huge", ignore_eos=True)
            eventually(lambda: watcher.status().counters.get('inferd_request_error_total{code="slow_consumer"}') == 1)
            assert watcher.run("mine")[0] == "mine"
            assert _rss(running.pid) - before < 64 << 20
            error = sleeper.finish(request)
            assert (error.code, error.limit) == (p.Code.SLOW_CONSUMER, 256 * 1024)
            sleeper.tokens(request)
            assert sleeper.run("awake")[0] == "awake"

    def test_a_stopped_client_process_does_not_hold_the_others(self) -> None:
        with daemon(faults=[{"match": "foreign", "kind": "huge"}], context=10**8) as running:
            watcher = running.client("watcher")
            worker_pid(watcher)
            with streaming(running.runtime) as victim:
                victim.send_signal(signal.SIGSTOP)
                name = 'inferd_request_error_total{code="slow_consumer"}'
                eventually(lambda: watcher.status().counters.get(name) == 1)
                eventually(lambda: model(watcher).running == 0)
                assert watcher.run("mine")[0] == "mine"


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
