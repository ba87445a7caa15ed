"""Requests over real sockets: answers, refusals, cancelling, ids, the queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Daemon, Raw, cpu_seconds, daemon, eventually, worker_pid


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    faults = [{"match": "slowfill", "kind": "slow_prefill", "seconds": 600}, {"match": "nan!", "kind": "nan"}]
    config = {"daemon": {"events_hz": 20}}
    with daemon(config=config, delay_s=0.002, context=256, max_sequences=4, faults=faults) as running:
        worker_pid(running.client("warm"))
        yield running


@pytest.fixture
def client(served: Daemon) -> Raw:
    return served.client()


@pytest.fixture(scope="module")
def endless() -> Iterator[Daemon]:
    """A daemon whose answers do not end by themselves while a test runs, when EOS is ignored."""
    faults = [{"match": "slowfill", "kind": "slow_prefill", "seconds": 600}]
    with daemon(delay_s=0.002, context=10**6, max_sequences=4, faults=faults) as running:
        worker_pid(running.client("warm"))
        yield running


def test_says_the_prompt_back_with_usage_and_timings(client: Raw) -> None:
    request = client.generate("héllo wörld", seed=7)
    accepted = client.until(request, p.Accepted)
    done = client.finish(request)
    assert client.text(request) == "héllo wörld"
    assert accepted.prompt_tokens == 13
    assert accepted.max_tokens == 256 - 13
    assert isinstance(done, p.Done)
    ids = [i for m in client.tokens(request) for i in m.ids]
    assert done.usage.completion_tokens == len(ids) == 14
    assert done.finish == (p.Finish(choice=0, reason="stop", stop=257, seed=7),)
    t = done.timings
    assert t.queue_s is not None
    assert t.prefill_s is not None
    assert t.ttft_s == pytest.approx(t.queue_s + t.prefill_s)
    assert t.tpot_s == pytest.approx((t.e2e_s - t.ttft_s) / (len(ids) - 1))


def test_a_fresh_seed_is_returned_and_differs(client: Raw) -> None:
    seeds = {client.run("x", n=2)[1].finish[0].seed for _ in range(3)}
    assert len(seeds) == 3


def test_choices_are_numbered_and_all_finish(client: Raw) -> None:
    request = client.generate("abc", n=3, max_tokens=2)
    done = client.finish(request)
    assert [f.reason for f in done.finish] == ["length"] * 3
    assert [f.seed for f in done.finish] == [done.finish[0].seed + i for i in range(3)]
    assert [client.text(request, choice) for choice in range(3)] == ["ab"] * 3
    assert sorted(m.choice for m in client.tokens(request) if m.finish) == [0, 1, 2]
    assert done.usage.completion_tokens == 6


def test_chat_goes_through_the_template(client: Raw) -> None:
    messages = [p.Message(role="user", content="hi")]
    text, done = client.run(None, messages=messages)
    assert "user\nhi" in text
    assert done.reason == "stop"
    client.send(p.Render(id="render", messages=messages))
    rendered = client.until("render", p.Rendered)
    assert rendered.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert len(rendered.ids) == done.usage.prompt_tokens


def test_tokenize(client: Raw) -> None:
    client.send(p.Tokenize(id="t", text="aé"))
    assert client.until("t", p.Tokenized).ids == [97, 195, 169]


@pytest.mark.parametrize(
    ("stop", "include", "expected"),
    [
        (("BCDE",), False, "A"),
        (("BCDE",), True, "ABCDE"),
        (("zz", "F!"), False, "ABCDE"),
        (("ple assistant",), False, "ABCDEF!"),
    ],
)
def test_stop_strings_end_a_choice(client: Raw, stop: tuple[str, ...], include: bool, expected: str) -> None:
    text, done = client.run("ABCDEF!", stop=stop, include_stop=include)
    assert text == expected
    assert done.reason == "stop"
    stopped_by = done.finish[0].stop
    assert stopped_by == (stop[-1] if stop[-1] in "ABCDEF!" else 257)


@pytest.mark.parametrize(("least", "text"), [(0, "ab"), (2, "ab"), (3, "abcab"), (5, "abcab"), (6, "abcabcab")])
def test_a_stop_string_does_not_end_the_output_before_min_tokens(client: Raw, least: int, text: str) -> None:
    said, done = client.run("abcabcabc", stop=("c",), min_tokens=least, max_tokens=9)
    assert said == text
    assert done.usage.completion_tokens == len(said) + 1


def test_a_stop_string_frees_the_engine(client: Raw) -> None:
    _, done = client.run("abc" * 10, stop=("c",), ignore_eos=True)
    assert done.usage.completion_tokens == 3
    eventually(lambda: client.status().models[0].running == 0)


def test_text_held_back_for_a_stop_string_comes_at_the_end(client: Raw) -> None:
    assert client.run("pleas", stop=("assistant",))[0] == "pleas"
    assert client.run("pleas", stop=("assistant",), max_tokens=5)[0] == "pleas"


def test_a_stop_token_ends_without_its_text(client: Raw) -> None:
    text, done = client.run("abc", stop_token_ids=(ord("c"),))
    assert text == "ab"
    assert done.finish[0].stop == ord("c")
    assert done.usage.completion_tokens == 3


BAD = [
    ({"temperature": -1.0}, "sampling.temperature"),
    ({"temperature": float("nan")}, "sampling.temperature"),
    ({"top_p": 2.0}, "sampling.top_p"),
    ({"n": 10**9}, "sampling.n"),
    ({"max_tokens": 0}, "sampling.max_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "sampling.min_tokens"),
    ({"stop": tuple("abcdefghijklmnopqrstuvwxyz")}, "sampling.stop"),
    ({"logit_bias": {260: 1.0}}, "sampling.logit_bias"),
    ({"logit_bias": {-1: 1.0}}, "sampling.logit_bias"),
    ({"stop_token_ids": (10**12,)}, "sampling.stop_token_ids"),
    ({"allowed_token_ids": ()}, "sampling.allowed_token_ids"),
    ({"prompt": "a", "prompt_ids": [1]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": None, "prompt_ids": []}, "prompt_ids"),
    ({"prompt": None, "prompt_ids": [1, 260]}, "prompt_ids"),
    ({"prompt": None, "prompt_ids": [-1]}, "prompt_ids"),
    ({"prompt": None, "prompt_ids": [2**63 + 5]}, "prompt_ids"),
    ({"prompt": None, "messages": []}, "messages"),
    ({"priority": 101}, "priority"),
    ({"deadline_ms": 0}, "deadline_ms"),
    ({"id": "x" * 129}, "id"),
]


@pytest.mark.parametrize(("fields", "field"), BAD)
def test_bad_values_are_refused_by_name_beside_a_good_request(client: Raw, fields: dict, field: str) -> None:
    good = client.generate("good one")
    bad = client.generate(**{"prompt": "bad", **fields})
    error = client.finish(bad)
    assert isinstance(error, p.Error)
    assert (error.code, error.field) == (p.Code.INVALID_PARAM, field)
    client.finish(good)
    assert client.text(good) == "good one"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "end"),
    [(255, None, 1), (255, 1, 1), (256, None, "error"), (257, 1, "error"), (200, 57, "error"), (200, 56, 56)],
)
def test_the_context_is_a_hard_limit(client: Raw, prompt: int, max_tokens: int | None, end: int | str) -> None:
    _, done = client.run("x" * prompt, max_tokens=max_tokens, ignore_eos=True)
    if end == "error":
        assert isinstance(done, p.Error)
        assert (done.code, done.limit) == (p.Code.CONTEXT_EXCEEDED, 256)
        assert str(prompt) in done.message
    else:
        assert (done.reason, done.usage.completion_tokens) == ("length", end)


def test_numeric_errors_end_one_request_only(client: Raw) -> None:
    good, bad = client.generate("fine"), client.generate("nan!")
    assert client.finish(bad).code == p.Code.NUMERIC_ERROR
    client.finish(good)
    assert client.text(good) == "fine"


def test_an_unknown_model_is_named(client: Raw) -> None:
    error = client.finish(client.generate("x", model="nonsense"))
    assert error.code == p.Code.UNKNOWN_MODEL
    assert "nonsense" in error.message


def test_an_id_in_use_is_refused_and_free_again_afterwards(endless: Daemon) -> None:
    client = endless.client()
    client.generate("a" * 60, id="same", ignore_eos=True)
    client.until("same", p.Tokens)
    client.generate("b", id="same")
    assert client.until("same", p.Error).code == p.Code.DUPLICATE_REQUEST
    client.call(p.Cancel(id="c", request="same"))
    done = client.until("same", p.Done)
    assert done.usage.prompt_tokens == 60
    client.inbox.clear()
    assert client.run("again", id="same")[0] == "again"


def test_ids_of_two_clients_are_apart(served: Daemon) -> None:
    first, second = served.client("one"), served.client("two")
    first.generate("from one", id="x")
    second.generate("from two", id="x")
    for client, text in ((first, "from one"), (second, "from two")):
        client.finish("x")
        assert client.text("x") == text


class TestCancel:
    @pytest.fixture
    def client(self, endless: Daemon) -> Raw:
        return endless.client()

    def test_while_decoding(self, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True)
        client.until(request, p.Tokens)
        assert client.call(p.Cancel(id="c", request=request)) == p.Ok(id="c", detail="cancelled")
        done = client.finish(request)
        assert done.reason == "cancelled"
        ids = [i for m in client.tokens(request) for i in m.ids]
        assert done.usage.completion_tokens == len(ids)
        assert client.tokens(request)[-1].finish == "cancelled"
        eventually(lambda: client.status().models[0].running == 0)

    def test_before_it_starts(self, client: Raw) -> None:
        running = [client.generate("r", ignore_eos=True) for _ in range(4)]
        for request in running:
            client.until(request, p.Tokens)
        waiting = client.generate("w")
        client.until(waiting, p.Accepted)
        client.call(p.Cancel(id="c", request=waiting))
        done = client.finish(waiting)
        assert (done.reason, done.usage.completion_tokens) == ("cancelled", 0)
        for request in running:
            client.call(p.Cancel(id="c" + request, request=request))
            assert client.finish(request).reason == "cancelled"

    def test_before_it_is_tokenized_every_choice_is_cancelled(self, client: Raw) -> None:
        """Cancelled at once, it is still with the text process and has no choices yet."""
        for number in range(10):
            request = client.generate("hello", n=3)
            client.call(p.Cancel(id=f"c{number}", request=request))
            done = client.finish(request)
            assert isinstance(done, p.Done)
            assert [f.choice for f in done.finish] == [0, 1, 2]
            assert {f.reason for f in done.finish} <= {"cancelled", "stop"}

    def test_in_prefill(self, client: Raw) -> None:
        request = client.generate("slowfill")
        while client.until(request, p.Progress).state != "prefill":
            pass
        client.call(p.Cancel(id="c", request=request))
        assert client.finish(request).reason == "cancelled"
        eventually(lambda: client.status().models[0].running == 0)

    def test_twice_and_after_the_end(self, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True)
        client.until(request, p.Tokens)
        details = [client.call(p.Cancel(id=f"c{i}", request=request)).detail for i in range(2)]
        assert details == ["cancelled", "not running"]
        assert client.finish(request).reason == "cancelled"
        assert client.call(p.Cancel(id="late", request=request)).detail == "not running"

    def test_that_overtakes_its_request_ends_it(self, client: Raw) -> None:
        assert client.call(p.Cancel(id="c", request="early")).detail == "not running"
        client.generate("abc", id="early", ignore_eos=True, n=2)
        done = client.finish("early")
        assert isinstance(done, p.Done)
        assert [(f.choice, f.reason) for f in done.finish] == [(0, "cancelled"), (1, "cancelled")]
        assert done.usage.completion_tokens == 0

    def test_that_comes_late_does_not_touch_the_next_request_of_its_id(self, client: Raw) -> None:
        for _ in range(2):
            client.inbox.clear()
            client.generate("abc", id="again", max_tokens=2)
            assert client.finish("again").reason in ("length", "stop")
            assert client.call(p.Cancel(id="late", request="again")).detail == "not running"

    def test_of_another_client_does_nothing(self, endless: Daemon, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True, max_tokens=40)
        client.until(request, p.Tokens)
        assert endless.client("other").call(p.Cancel(id="c", request=request)).detail == "not running"
        assert client.finish(request).reason == "length"

    def test_text_held_back_is_flushed(self, client: Raw) -> None:
        request = client.generate("pleas", stop=("seas",), ignore_eos=True)
        client.until(request, p.Tokens)
        client.call(p.Cancel(id="c", request=request))
        done = client.finish(request)
        ids = [i for m in client.tokens(request) for i in m.ids]
        assert client.text(request) == bytes(ids).decode()
        assert done.usage.completion_tokens == len(ids)


def test_progress_tells_how_far_a_prefill_is(client: Raw) -> None:
    request = client.generate("slowfill")
    while (told := client.until(request, p.Progress)).state != "prefill" or not told.done:
        pass
    assert told.done == told.total - 1 == 7
    client.call(p.Cancel(id="c", request=request))
    assert client.finish(request).reason == "cancelled"


def test_models_and_plugins_answer(client: Raw) -> None:
    reply = client.call(p.Models(id="m"))
    assert [(m.name, m.loaded, m.state, m.default) for m in reply.models] == [("fake", True, "ready", True)]
    assert client.call(p.Plugins(id="p")) == p.PluginsReply(id="p", plugins=())


def test_events_start_with_the_present_state_and_are_numbered(served: Daemon) -> None:
    import zmq

    context = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(f"ipc://{served.runtime / 'events.sock'}")
        snapshots = []
        for _ in range(5):
            assert socket.poll(WAIT_S * 1000)
            snapshots.append(p.decode(socket.recv_multipart(), p.event_decoder))
    finally:
        context.destroy(linger=0)
    assert all(isinstance(s, p.StatusReply) for s in snapshots)
    assert [s.seq for s in snapshots] == list(range(snapshots[0].seq, snapshots[0].seq + 5))
    gaps = [after.uptime_s - before.uptime_s for before, after in itertools.pairwise(snapshots)]
    assert min(gaps) < 0.3  # as often as daemon.events_hz says
    assert snapshots[0].models[0].state == "ready"


def test_counters_agree_with_what_was_received(served: Daemon) -> None:
    client = served.client()
    name = "inferd_generation_tokens_total"
    before = client.status().counters.get(name, 0)
    received = sum(client.run("abcdef")[1].usage.completion_tokens for _ in range(3))
    assert client.status().counters[name] - before == received == 21


def test_ten_thousand_requests_meet_a_bounded_queue() -> None:
    with daemon(config={"daemon": {"max_queue": 64, "max_client_requests": 20000}}, delay_s=0.01) as running:
        client = running.client()
        worker_pid(client)
        for i in range(10_000):
            client.send(p.Generate(id=f"q{i}", prompt_ids=[65] * 4, sampling=p.SamplingParams(max_tokens=4)))
        client.status()
        ends = {}
        while len(ends) < 10_000:
            message = client.receive()
            assert message is not None, len(ends)
            if isinstance(message, (p.Done, p.Error)):
                ends[message.id] = message
        refused = [e for e in ends.values() if isinstance(e, p.Error)]
        assert {e.code for e in refused} == {p.Code.OVERLOADED}
        assert all(e.retry_after_ms and e.retry_safe and e.limit == 64 for e in refused)
        assert 64 <= 10_000 - len(refused) < 5000
        assert client.run("after")[0] == "after"


def test_status_is_cheap_with_a_long_queue() -> None:
    config = {"daemon": {"max_queue": 20000, "max_client_requests": 20000}}
    with daemon(config=config, delay_s=0.05, context=100_000) as running:
        client, other = running.client(), running.client("other")
        worker_pid(client)
        for i in range(10_000):
            client.send(p.Generate(id=f"q{i}", prompt_ids=[65] * 4, sampling=p.SamplingParams(ignore_eos=True)))
        eventually(lambda: other.status().models[0].waiting > 9_900)
        costs = []
        for _ in range(20):
            before = cpu_seconds(running.pid)
            status = other.status()
            costs.append(cpu_seconds(running.pid) - before)
        assert min(costs) < 0.1, costs  # some have the news of an engine with 10,000 requests beside them
        assert len(status.requests) == 256
        assert any(" requests, the oldest 256" in w for w in status.warnings)
        assert len(msgspec.msgpack.encode(status)) < 200_000
