"""Load on a running daemon with scripted answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from inferd.bench.serve.load import LoadGenerator, Outcome
from inferd.bench.serve.plan import Planned
from inferd_client import AsyncClient
from inferd_client.testing import FakeDaemon

pytestmark = pytest.mark.daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[FakeDaemon]:
    script = {"delay_s": 0.004, "reply": "ab", "max_sequences": 4, "faults": [{"match": "Z", "kind": "nan"}]}
    with FakeDaemon(script, config={"daemon": {"max_client_requests": 30}}) as running:
        running.wait_ready()
        yield running


def planned(count: int, output: int = 6, text: bytes = b"hello") -> list[Planned]:
    return [Planned(i, [*text, 97 + i % 26], output) for i in range(count)]


def run(daemon: FakeDaemon, work: object, clients: int = 1) -> list[Outcome]:
    async def main() -> list[Outcome]:
        opened = [daemon.async_client() for _ in range(clients)]
        try:
            return await work(LoadGenerator(opened, "fake"))  # type: ignore[operator]
        finally:
            for client in opened:
                await client.close()

    return asyncio.run(main())


def in_flight(outcomes: list[Outcome]) -> int:
    """Return the most requests that were unanswered at once."""
    events = sorted([(o.sent, 1) for o in outcomes] + [(o.end, -1) for o in outcomes])
    level = most = 0
    for _, step in events:
        level += step
        most = max(most, level)
    return most


def test_a_closed_loop_keeps_its_number_in_flight(daemon: FakeDaemon) -> None:
    told: list[int] = []
    found = run(daemon, lambda g: g.closed_loop(planned(12), 3, progress=told.append), clients=2)
    assert [o.num_tokens for o in found] == [6] * 12
    assert {o.error for o in found} == {""}
    assert in_flight(found) == 3
    assert told == list(range(1, 13))
    assert {o.usage.prompt_tokens for o in found if o.usage} == {6}
    assert all(o.ttft is not None and 0 < o.ttft < o.e2e for o in found)


def test_a_closed_loop_ends_with_its_time(daemon: FakeDaemon) -> None:
    found = run(daemon, lambda g: g.closed_loop(planned(10_000), 2, until=0.3))
    assert 2 <= len(found) < 1000
    assert max(o.due for o in found) < 0.3
    assert all(o.num_tokens == 6 for o in found), "what was begun is finished"


def test_an_open_loop_sends_without_waiting_for_answers(daemon: FakeDaemon) -> None:
    """Twelve requests at once at a daemon that runs four: the queue shows in the latency."""
    found = run(daemon, lambda g: g.open_loop([(0.01, p) for p in planned(12)]))
    assert in_flight(found) == 12
    assert {o.due for o in found} == {0.01}
    firsts = [o.ttft for o in found if o.ttft is not None]
    assert max(firsts) > min(o.e2e for o in found), "the last begin when some are done"


def test_a_generator_that_stalls_does_not_hide_the_wait(daemon: FakeDaemon) -> None:
    """The loop sleeps while requests fall due; they are sent late, and their latency counts from when they were due."""

    def stall(done: int) -> None:
        if done == 1:
            time.sleep(0.4)

    plan = [(0.0, planned(1)[0]), *((0.1, p) for p in planned(3))]
    for _ in range(10):  # a pause may keep the first from being done before the others are due
        late = [o for o in run(daemon, lambda g: g.open_loop(plan, progress=stall)) if o.due == 0.1]
        if late[0].sent - late[0].due > 0.2:
            break
    assert len(late) == 3
    for o in late:
        assert o.sent - o.due > 0.2
        assert o.ttft is not None
        assert o.ttft > 0.2


def test_what_fails_is_counted_and_the_rest_goes_on(daemon: FakeDaemon) -> None:
    plan = planned(4) + planned(2, text=b"Z") + planned(2)
    found = run(daemon, lambda g: g.closed_loop(plan, 2))
    assert sorted(o.error for o in found) == [""] * 6 + ["numeric_error"] * 2


def test_refused_requests_are_not_sent_again(daemon: FakeDaemon) -> None:
    found = run(daemon, lambda g: g.open_loop([(0.0, p) for p in planned(40, output=40)]))
    refused = [o for o in found if o.error == "overloaded"]
    assert len(refused) == 10, "one client may have 30 unfinished requests"
    assert len(found) == 40


def test_nothing_enters_the_traffic_record(daemon: FakeDaemon) -> None:
    run(daemon, lambda g: g.closed_loop(planned(2), 1))
    assert daemon.client().traffic().models == ()


def test_an_unknown_model_is_an_error_of_each_request(daemon: FakeDaemon) -> None:
    async def main() -> list[Outcome]:
        async with AsyncClient(daemon.runtime) as client:
            return await LoadGenerator([client], "nope").closed_loop(planned(2), 1)

    assert [o.error for o in asyncio.run(main())] == ["unknown_model"] * 2
