"""Both faces against real sockets: the same behaviour is asked of each through one small adapter."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import inferd_client as ic
from inferd_client import protocol as p

from .router import Router, done, start, words

WAIT_S = 60.0
"""For what must come, however busy the machine."""


class Blocking:
    """Run a client method and collect streams in the calling thread."""

    def __init__(self, runtime, **options) -> None:
        self.client = ic.Client(runtime, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def run(self, work: Callable[[Any], Any]) -> Any:
        return work(self.client)

    def collect(self, start_stream: Callable[[Any], Any], limit: int | None = None) -> list[ic.Piece]:
        pieces = []
        with start_stream(self.client) as stream:
            for piece in stream:
                pieces.append(piece)
                if len(pieces) == limit:
                    break
        return pieces


class Awaited(Blocking):
    """The same on a private event loop."""

    def __init__(self, runtime, **options) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = ic.AsyncClient(runtime, **options)

    def __exit__(self, *_):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def run(self, work):
        async def go():
            return await work(self.client)

        return self.loop.run_until_complete(go())

    def collect(self, start_stream, limit=None):
        async def go():
            pieces = []
            async with start_stream(self.client) as stream:
                async for piece in stream:
                    pieces.append(piece)
                    if len(pieces) == limit:
                        break
            return pieces

        return self.loop.run_until_complete(go())


@pytest.fixture(params=[Blocking, Awaited])
def face(request) -> type[Blocking]:
    return request.param


def wait_for(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def slow_words(pause: float):
    """One word at once, the rest of the prompt never."""

    def handler(router: Router, side: str, identity: bytes, message: p.Request) -> None:
        if isinstance(message, p.Generate):
            start(router, identity, message)
            router.send("data", identity, p.Tokens(id=message.id, seq=0, text="one", ids=(1,)))
        else:
            words(router, side, identity, message)

    return handler


def silent(router: Router, side: str, identity: bytes, message: p.Request) -> None:
    if not isinstance(message, p.Generate):
        words(router, side, identity, message)


def failing(**fields: Any):
    def handler(router: Router, side: str, identity: bytes, message: p.Request) -> None:
        router.send(side, identity, p.Error(id=message.id, **fields))  # type: ignore[attr-defined]

    return handler


def test_results(face, runtime):
    with Router(runtime, words), face(runtime) as f:
        result = f.run(lambda c: c.generate("a b c", temperature=0, request_id="mine"))
        assert (result.text, result.ids, result.finish, result.seed) == ("abc", [0, 1, 2], "stop", 7)
        assert (result.id, result.prompt_tokens, result.max_tokens) == ("mine", 3, 9)
        assert result.usage.completion_tokens == len(result.ids)  # never counted twice
        assert str(result) == "abc"
        pieces = f.collect(lambda c: c.generate("a b c", stream=True))
        assert [(piece.text, piece.ids) for piece in pieces] == [("a", (0,)), ("b", (1,)), ("c", (2,))]
        assert f.run(lambda c: c.tokenize("ab")) == [97, 98]
        assert f.run(lambda c: c.status()).instance == "i1"
        assert f.run(lambda c: c.models()) == ()
        assert f.client.daemon.limits.max_queue == 9


def test_requests_carry_what_was_asked(face, runtime):
    with Router(runtime, words) as router, face(runtime) as f:
        base = ic.SamplingParams(top_k=5, stop=("x",))
        f.run(lambda c: c.generate([1, 2], sampling=base, stop="y", deadline=1.5, queue_timeout=0.1, priority=3))
        f.run(lambda c: c.chat("hi", tools=[{"a": 1}], template_args={"t": True}, model="m"))
        f.run(lambda c: c.chat([{"role": "system", "content": "s"}, ic.Message(role="user", content="u")]))
        ids, plain, typed = router.of(p.Generate)
        assert (ids.prompt_ids, ids.deadline_ms, ids.queue_timeout_ms, ids.priority) == ([1, 2], 1500, 100, 3)
        assert (ids.sampling.top_k, ids.sampling.stop) == (5, ("y",))
        assert plain.messages == [ic.Message(role="user", content="hi")]
        assert (plain.tools, plain.template_args, plain.model) == ([{"a": 1}], {"t": True}, "m")
        assert [message.role for message in typed.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 99}, "n"),
        ({"stop": ["", "x"]}, "stop"),
        ({"priority": "high"}, "priority"),
        ({"request_id": "x" * 200}, "request_id"),
        ({"deadline": math.inf}, "deadline"),
        ({"deadline": math.nan}, "deadline"),
        ({"deadline": 0}, "deadline"),
        ({"queue_timeout": -1.0}, "queue_timeout"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_sent(face, runtime, options, field):
    with face(runtime) as f, pytest.raises(ic.InvalidParam) as caught:
        f.run(lambda c: c.generate("x", **options))
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", [[1.7], ["a"], [None], [[1]]])
def test_token_ids_are_integers(face, runtime, prompt):
    with face(runtime) as f, pytest.raises(ic.InvalidParam) as caught:
        f.run(lambda c: c.generate(prompt))
    assert caught.value.field == "prompt_ids"


def test_an_unknown_option_is_a_type_error(face, runtime):
    with face(runtime) as f, pytest.raises(TypeError, match="temprature"):
        f.run(lambda c: c.generate("x", temprature=1))


def test_no_daemon_fails_at_once_with_the_remedy(face, runtime):
    with face(runtime, timeouts=ic.Timeouts(connect=3600)) as f:
        for call in (lambda c: c.generate("x"), lambda c: c.status()):
            with pytest.raises(ic.ConnectionFailed, match="inferd serve"):
                f.run(call)


def test_a_stale_socket_counts_as_no_daemon(face, runtime):
    Router(runtime, words).close()
    with face(runtime) as f, pytest.raises(ConnectionError, match="inferd serve"):
        f.run(lambda c: c.status())


def test_a_daemon_that_comes_late_is_waited_for_when_asked(face, runtime):
    routers = []
    timer = threading.Timer(0.3, lambda: routers.append(Router(runtime, words)))
    timer.start()
    with face(runtime, wait_for_daemon=True, timeouts=ic.Timeouts(connect=WAIT_S)) as f:
        assert f.run(lambda c: c.generate("a b")).text == "ab"
    timer.join()
    routers[0].close()


def test_a_listener_that_never_answers_runs_into_the_connect_timeout(face, runtime):
    with Router(runtime, words) as router, face(runtime, timeouts=ic.Timeouts(connect=0.3)) as f:
        router.welcome = lambda hello: p.Pong()  # type: ignore[method-assign]
        began = time.monotonic()
        with pytest.raises(ic.ConnectionFailed, match="no answer"):
            f.run(lambda c: c.status())
        assert time.monotonic() - began > 0.25


def test_first_token_idle_and_total_timeouts_name_themselves_and_cancel(face, runtime):
    with Router(runtime, silent) as router, face(runtime) as f:
        for timeouts, kind in ((ic.Timeouts(first_token=0.1), "first_token"), (ic.Timeouts(total=0.1), "total")):
            before = len(router.of(p.Generate))
            while len(router.of(p.Generate)) == before:  # a pause may use up the time before it is sent
                with pytest.raises(ic.RequestTimeout) as caught:
                    f.run(lambda c, t=timeouts: c.generate("x", timeouts=t))
                assert caught.value.kind == kind
                assert isinstance(caught.value, TimeoutError)
        wait_for(lambda: len(router.of(p.Cancel)) == len(router.of(p.Generate)))
    with Router(runtime, slow_words(0)) as router, face(runtime) as f:
        partial = None
        while partial is None:  # the same before the first word
            with pytest.raises(ic.RequestTimeout) as caught:
                f.run(lambda c: c.generate("x", timeouts=ic.Timeouts(idle=0.1, first_token=WAIT_S)))
            assert caught.value.kind == "idle"
            partial = caught.value.partial
        assert partial.text == "one"
        wait_for(lambda: router.of(p.Cancel))


def test_progress_resets_idle_and_reaches_the_caller(face, runtime):
    def handler(router, side, identity, message):
        if isinstance(message, p.Generate):
            start(router, identity, message)
            for i in range(5):
                time.sleep(0.8)
                router.send("data", identity, p.Progress(id=message.id, state="prefill", done=i, total=5))
            router.send("data", identity, done(message.id, 0))

    seen = []
    with Router(runtime, handler), face(runtime, timeouts=ic.Timeouts(idle=3.5)) as f:
        f.run(lambda c: c.generate("x", on_progress=seen.append))
    assert [progress.done for progress in seen] == list(range(5))


@pytest.mark.parametrize("code", list(p.Code))
def test_every_code_has_its_exception(face, runtime, code):
    handler = failing(code=code, message="because", field="f", limit=3, retry_after_ms=1500)
    with Router(runtime, handler), face(runtime, retry=ic.NO_RETRY) as f:
        with pytest.raises(ic.DaemonError, match="because") as caught:
            f.run(lambda c: c.tokenize("x"))
        assert type(caught.value).code is code
        assert type(caught.value).__name__.lower() == code.replace("_", "")
        assert (caught.value.field, caught.value.limit, caught.value.retry_after) == ("f", 3, 1.5)


def test_an_error_in_mid_stream_carries_what_came_before(face, runtime):
    def handler(router, side, identity, message):
        if isinstance(message, p.Generate):
            slow_words(0)(router, side, identity, message)
            router.send("data", identity, p.Error(id=message.id, code=p.Code.ENGINE_LOST, message="died"))

    with Router(runtime, handler), face(runtime) as f:
        with pytest.raises(ic.EngineLost) as caught:
            f.run(lambda c: c.generate("x"))
        assert caught.value.partial.text == "one"
        assert caught.value.partial.finish is None


def test_leaving_a_stream_early_cancels_it_at_the_daemon(face, runtime):
    with Router(runtime, slow_words(0)) as router, face(runtime) as f:
        assert len(f.collect(lambda c: c.generate("x", stream=True, request_id="r1"), limit=1)) == 1
        wait_for(lambda: [cancel.request for cancel in router.of(p.Cancel)] == ["r1"])


def test_dropping_a_stream_cancels_it_too(runtime):
    with Router(runtime, slow_words(0)) as router, ic.Client(runtime) as client:
        for _ in client.generate("x", stream=True, request_id="r1"):
            break
        gc.collect()
        wait_for(lambda: [cancel.request for cancel in router.of(p.Cancel)] == ["r1"])


def test_an_ended_stream_is_not_cancelled(face, runtime):
    with Router(runtime, words) as router, face(runtime) as f:
        f.collect(lambda c: c.generate("a b", stream=True))
        f.run(lambda c: c.status())
        assert router.of(p.Cancel) == []


def test_cancel_by_id_ends_the_stream_with_its_reason(runtime):
    waiting = {}

    def handler(router, side, identity, message):
        if isinstance(message, p.Generate):
            waiting[message.id] = identity
            slow_words(0)(router, side, identity, message)
        elif isinstance(message, p.Cancel):
            router.send("data", waiting[message.request], done(message.request, 1, "cancelled"))
            router.send(side, identity, p.Ok(id=message.id))

    with Router(runtime, handler), ic.Client(runtime) as client:
        stream = client.generate("x", stream=True)
        assert next(stream).text == "one"
        client.cancel(stream)
        assert list(stream) == []
        assert stream.result().finish == "cancelled"


def test_close_is_idempotent_and_fails_what_runs_in_other_threads(runtime):
    with Router(runtime, slow_words(0)) as router:
        client = ic.Client(runtime)
        stream = client.generate("x", stream=True)
        next(stream)
        caught = []

        def read():
            try:
                next(stream)
            except ic.ClientClosed as error:
                caught.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.05)
        client.close()
        client.close()
        thread.join(WAIT_S)
        assert len(caught) == 1
        with pytest.raises(ic.ClientClosed):
            client.status()
        wait_for(lambda: router.of(p.Cancel))


def test_a_forgotten_client_ends_its_thread(runtime):
    with Router(runtime, words):
        before = threading.active_count()
        ic.Client(runtime).status()
        gc.collect()
        wait_for(lambda: threading.active_count() <= before)


def test_eight_interleaved_iterators_and_two_calls_each_lose_nothing(runtime):
    """Case 4.11: no shared queue starves, ids never meet, every iterator ends."""
    with Router(runtime, words), ic.Client(runtime) as client:
        texts = [" ".join(f"{name}{i}" for i in range(50)) for name in "abcdefgh"]
        for _ in range(2):
            streams = [client.generate(text, stream=True) for text in texts]
            seen = [[] for _ in streams]
            while streams_left := [i for i, stream in enumerate(streams) if len(seen[i]) != 51]:
                for i in streams_left:
                    seen[i].append(str(next(streams[i], "")))
            assert ["".join(words) for words in seen] == [text.replace(" ", "") for text in texts]


def test_eight_threads_share_one_client(runtime):
    results: dict[str, list[str]] = {}
    with Router(runtime, words), ic.Client(runtime) as client:

        def work(name: str) -> None:
            text = " ".join(f"{name}{i}" for i in range(40))
            results[name] = [client.generate(text).text for _ in range(5)]

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert results == {name: ["".join(f"{name}{i}" for i in range(40))] * 5 for name in "abcdefgh"}


def test_eight_tasks_share_one_async_client(runtime):
    async def main():
        async with ic.AsyncClient(runtime) as client:
            texts = [" ".join(f"{name}{i}" for i in range(40)) for name in "abcdefgh"]
            for _ in range(2):
                results = await asyncio.gather(*(client.generate(text) for text in texts))
                assert [result.text for result in results] == [text.replace(" ", "") for text in texts]

    with Router(runtime, words):
        asyncio.run(main())


def test_a_cancelled_task_cancels_at_the_daemon(runtime):
    async def main(router):
        async with ic.AsyncClient(runtime) as client:
            task = asyncio.create_task(client.generate("x", request_id="r1"))
            while not router.of(p.Generate):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not router.of(p.Cancel):
                await asyncio.sleep(0.01)
            assert router.of(p.Cancel)[0].request == "r1"

    with Router(runtime, slow_words(0)) as router:
        asyncio.run(asyncio.wait_for(main(router), WAIT_S))


def test_a_restarted_daemon_fails_streams_and_serves_the_next_call(face, runtime):
    first = Router(runtime, slow_words(0))
    with face(runtime) as f:
        stream = f.run(_first_piece)
        first.close()
        with Router(runtime, words, instance="i2"):
            with pytest.raises(ic.ServerRestarted):
                f.run(lambda c: _finish(stream))
            assert f.run(lambda c: c.generate("c d")).text == "cd"
            assert f.client.daemon.instance == "i2"


def _first_piece(client):
    stream = client.generate("x", stream=True)
    if isinstance(stream, ic.Stream):
        next(stream)
        return stream

    async def go():
        await anext(stream)
        return stream

    return go()


def _finish(stream):
    return stream.result()


def test_a_hung_daemon_is_noticed_by_its_silence(face, runtime):
    with Router(runtime, slow_words(0)) as router, face(runtime) as f:
        router.heartbeat_s = 0.1
        f.run(_first_piece)
        router.answer_pings = False
        hellos = len(router.of(p.Hello))
        wait_for(lambda: len(router.of(p.Hello)) > hellos + 1)  # both sockets were opened anew


def test_too_large_a_request_is_refused_here(face, runtime):
    with Router(runtime, words, max_frame=5000) as router, face(runtime) as f:
        with pytest.raises(ic.InvalidParam) as caught:
            f.run(lambda c: c.generate("x" * 6000))
        assert caught.value.limit == 5000
        assert router.of(p.Generate) == []
        assert f.run(lambda c: c.generate("a b")).text == "ab"
