"""Many clients of one daemon: who leaves, who floods, who waits, and what it costs in the long run."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_client import NO_RETRY, AsyncClient, Client, NumericError, Stream, Timeouts
from tests.e2e.harness import (
    WAIT_S,
    Served,
    all_free,
    anonymous_bytes,
    counters,
    descendants,
    eventually,
    idle,
    module_of,
    the_model,
)
from tests.e2e.trap_plugin.inferd_trap import NAN, SLOW

pytestmark = pytest.mark.daemon

ENDLESS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "allowed_token_ids": [SLOW], "max_tokens": 2000}
SLOTS = 8
OVERLOADED = 'inferd_request_error_total{code="overloaded"}'
TRIES = 5
"""A pause in the midst of a comparison spoils it: it is made again."""
MIB = 1 << 20


def victim(served: Served, prompt: list[int], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that streams one request."""
    program = Path(__file__).with_name("client_process.py")
    arguments = [str(served.runtime), json.dumps({"prompt": prompt} | options)]
    return subprocess.Popen([sys.executable, str(program), *arguments])


def victims(client: Client) -> list[str]:
    """Return the states of all requests of victims."""
    return [request.state for request in client.status().requests if request.client.startswith("victim")]


@pytest.mark.parametrize("state", ["prefill", "decode", "waiting"])
def test_what_a_killed_client_had_is_free_at_once(served: Served, client: Client, state: str) -> None:
    mine: list[Stream] = []
    if state == "waiting":
        mine = [client.generate([50 + i], stream=True, **ENDLESS) for i in range(SLOTS)]
        eventually(lambda: the_model(client, "tiny").running == SLOTS)
    prompt, options = ([SLOW] * 4000, {"max_tokens": 1}) if state == "prefill" else ([7] * 100, ENDLESS)
    process = victim(served, prompt, **options)
    try:
        while eventually(lambda: victims(client) == [state] or process.poll() == 0) and process.poll() == 0:  # noqa: B023
            process = victim(served, prompt, **options)  # a pause has hidden its state
        process.kill()
        eventually(lambda: not victims(client))
        eventually(lambda: the_model(client, "tiny").waiting == 0)
        if not mine:
            idle(client, "tiny")
        ends = [line for line in served.logged().splitlines() if '"request"' in line and '"victim' in line]
        assert json.loads(ends[-1])["end"] in ("cancelled", "client gone")
    finally:
        process.kill()
        process.wait()
        for stream in mine:
            stream.close()


def test_a_storm_of_dying_clients_leaves_nothing(served: Served, client: Client) -> None:
    processes = [victim(served, [60 + i] * 20, **ENDLESS) for i in range(6)]
    try:
        eventually(lambda: len(victims(client)) >= 3)
        for process in processes:
            process.kill()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    eventually(lambda: all_free(client, "tiny"))
    eventually(lambda: not client.status().requests)
    assert client.generate([7], max_tokens=3, ignore_eos=True).finish == "length"


def test_a_client_that_closes_or_cancels_leaves_nothing(served: Served, client: Client) -> None:
    """In every state, with and without choices, in no order."""
    rng = random.Random(3)
    for _ in range(30):
        other = served.client()
        prompts = [[rng.randrange(4, 270) for _ in range(rng.choice([1, 8, 200]))] for _ in range(rng.randrange(1, 6))]
        streams = [
            other.generate(prompt, stream=True, max_tokens=500, n=rng.choice([1, 1, 3]), seed=1) for prompt in prompts
        ]
        if rng.random() < 0.5:
            next(streams[0])
        for stream in rng.sample(streams, rng.randrange(len(streams) + 1)):
            if rng.random() < 0.5:
                stream.close()
            else:
                other.cancel(stream)
        other.close()
    eventually(lambda: not client.status().requests)
    idle(client, "tiny")


def ttft(served: Served, prompt: list[int]) -> float:
    """Return the seconds to the first token of a client that has asked for nothing before."""
    with served.client() as client:
        got = client.generate(prompt, max_tokens=1, temperature=0)
    assert got.timings is not None
    assert got.timings.ttft_s is not None
    return got.timings.ttft_s


def test_a_thousand_requests_of_one_client_do_not_hold_another(served: Served, client: Client) -> None:
    rng = random.Random(4)

    def prompt() -> list[int]:
        """Thirty-two chunks, so that it is the prefill that is measured and not one step."""
        return [rng.randrange(4, 280) for _ in range(2000)]

    alone = statistics.median(ttft(served, prompt()) for _ in range(5))
    for _ in range(TRIES):
        overtaken, beside = beside_a_thousand(served, client, prompt)
        # Alone it takes 32 steps. A request of the hog holds one of the 7 other slots for 5 steps, so this many pass by
        # in three times 32. Not counted in seconds: with a model this small a step of 8 sequences costs twice one of 1.
        if len(overtaken) == 5 and max(overtaken) <= 3 * 32 * 7 // 5 and min(beside) < 10 * alone:
            break
    assert len(overtaken) == 5, "the hog must still be there at the end"
    assert max(overtaken) <= 3 * 32 * 7 // 5, overtaken
    assert min(beside) < 10 * alone, (alone, beside)


def beside_a_thousand(served: Served, client: Client, prompt: Callable[[], list[int]]) -> tuple[list[int], list[float]]:
    """Return how many of the hog's requests passed five of another client, while there were some, and their TTFTs."""
    hog = served.client("hog")
    plugs = [hog.generate([50 + i], stream=True, **ENDLESS) for i in range(SLOTS)]  # until all thousand are there
    streams = [hog.generate(prompt()[:8], stream=True, max_tokens=4, ignore_eos=True) for _ in range(1000)]
    eventually(lambda: the_model(client, "tiny").waiting >= 1000)
    for plug in plugs:
        plug.close()
    beside, overtaken = [], []
    for _ in range(5):
        before = the_model(client, "tiny").waiting
        beside.append(ttft(served, prompt()))
        left = the_model(client, "tiny").waiting
        if left > 50:
            overtaken.append(before - left)
    assert all(stream.result().finish == "length" for stream in streams)
    return overtaken, beside


def test_ten_thousand_requests_meet_a_bounded_queue_and_status_answers(served: Served) -> None:
    code = (
        "import asyncio, sys\n"
        "from inferd_client import NO_RETRY, AsyncClient, Overloaded, Timeouts\n"
        "async def one(client, i):\n"
        "    try:\n"
        "        return len((await client.generate([5 + i % 200] * 4, max_tokens=2, ignore_eos=True)).ids)\n"
        "    except Overloaded as error:\n"
        "        assert error.limit and error.retry_after is not None and error.retry_safe\n"
        "        return 0\n"
        "async def main():\n"
        "    patience = Timeouts(connect=100, idle=100)\n"
        "    async with AsyncClient(sys.argv[1], name='flood', retry=NO_RETRY, timeouts=patience) as client:\n"
        "        ids = await asyncio.gather(*(one(client, i) for i in range(10_000)))\n"
        "    assert set(ids) <= {0, 2}\n"
        "    print(sum(1 for n in ids if n), sum(1 for n in ids if not n))\n"
        "asyncio.run(main())\n"
    )
    times, waiting = [], []
    with served.client("watcher") as client:
        plugs = [client.generate([50 + i], stream=True, **ENDLESS) for i in range(SLOTS)]  # until the queue is full
        eventually(lambda: the_model(client, "tiny").running == SLOTS)
        before = counters(client.status(), OVERLOADED)
        flood = subprocess.Popen([sys.executable, "-c", code, str(served.runtime)], stdout=subprocess.PIPE, text=True)
        while flood.poll() is None:
            begin = time.monotonic()
            status = client.status()
            times.append(time.monotonic() - begin)
            waiting.append(len(status.requests))
            while plugs and counters(status, OVERLOADED) > before:
                plugs.pop().close()
            time.sleep(0.02)
        assert flood.stdout is not None
        answered, refused = (int(word) for word in flood.stdout.read().split())
        flood.stdout.close()
        assert flood.wait() == 0
        assert answered + refused == 10_000
        assert answered >= 4096
        assert refused > 0
        assert max(waiting) == 256
        busy = [seconds for seconds, count in zip(times, waiting, strict=True) if count == 256]
        assert len(busy) > 5
        assert sorted(busy)[len(busy) // 10] < 0.1, sorted(busy)  # others on the machine take the rest of the time
        idle(client, "tiny")


async def one_of_many(client: AsyncClient, rng: random.Random) -> None:
    """Some request, ended in some way."""
    prompt = [rng.randrange(4, 270) for _ in range(rng.choice([1, 5, 40, 150]))]
    if rng.random() < 0.05:
        prompt[0] = NAN
    options: Any = {"max_tokens": rng.randrange(1, 12), "n": rng.choice([1, 1, 1, 2]), "ignore_eos": True}
    options |= rng.choice([{}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"stop": ["a"]}, {"repetition_penalty": 1.1}])
    try:
        if rng.random() < 0.15:
            async with client.generate(prompt, stream=True, **options | {"max_tokens": 200}) as stream:
                await anext(stream)
        elif rng.random() < 0.2:
            await client.chat("hello" * rng.randrange(1, 9), **options)
        else:
            await client.generate(prompt, **options)
    except NumericError:
        if prompt[0] != NAN:
            raise


async def many(runtime: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    timeouts = Timeouts(connect=WAIT_S, idle=WAIT_S)
    async with AsyncClient(runtime, name="many", retry=NO_RETRY, timeouts=timeouts) as client:
        for _ in range(count // 25):
            await asyncio.gather(*(one_of_many(client, rng) for _ in range(25)))


def test_memory_stays_flat_over_five_hundred_requests(served: Served, client: Client) -> None:
    worker = the_model(client, "tiny").pid
    assert worker is not None
    for i in range(5):  # touch every page of the KV pool
        client.generate([20 + i] * 4000, max_tokens=1)
    for rows in range(1, 65):  # libraries keep what they compiled for each number of rows
        client.generate([30 + rows] * rows, max_tokens=1, prompt_logprobs=0)
    asyncio.run(many(served.runtime, 250, seed=1))  # and let the allocators settle
    idle(client, "tiny")
    texts = [pid for pid in descendants(served.pid) if module_of(pid) == "inferd.text"]
    assert len(texts) >= 2, "the process and its workers"
    before = {pid: anonymous_bytes(pid) for pid in (served.pid, worker, *texts)}
    asyncio.run(many(served.runtime, 500, seed=2))
    idle(client, "tiny")
    growth = {pid: anonymous_bytes(pid) - size for pid, size in before.items()}
    assert growth[served.pid] < 2 * MIB, growth
    assert all(growth[pid] < 4 * MIB for pid in texts), growth
    assert growth[worker] < 6 * MIB, growth
    status = client.status()
    assert not status.requests
    assert the_model(client, "tiny").kv_blocks_free == the_model(client, "tiny").kv_blocks_total
