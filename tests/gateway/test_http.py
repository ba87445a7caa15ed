"""Raw HTTP: what no sound client sends, who is turned away, streams and their ends, health and metrics."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferd_client.testing import FakeDaemon
from inferd_gateway.requests import ChatRequest, CompletionRequest
from tests.gateway.running import TOKEN, Running, eventually, gateway

CHAT = "/v1/chat/completions"


def body(**fields) -> bytes:
    return json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hello"}]} | fields).encode()


@pytest.mark.parametrize(
    ("sent", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        (b"[]", 400, None),
        (b'"chat"', 400, None),
        (b"{}", 400, "messages"),
        (b'{"messages": "hi"}', 400, "messages"),
        (body(messages=[]), 400, "messages"),
        (body(n="two"), 400, "n"),
        (body(temperature=None, n=None, stop=None, tools=None), 200, None),
        (body(temperature=[1]), 400, "temperature"),
        (body(temperature=1e400), 400, None),
        (body(logit_bias={"x": 1}), 400, "logit_bias"),
        (body(logit_bias={"5": 5000}), 400, "logit_bias"),
        (body(stop=["x"] * 17), 400, "stop"),
        (body(stop=""), 400, "stop"),
        (body(top_logprobs=3), 400, "top_logprobs"),
        (body(logprobs=True, top_logprobs=21), 400, "logprobs"),
        (body(max_tokens=0), 400, "max_tokens"),
        (body(max_completion_tokens=0), 400, "max_tokens"),
        (body(max_tokens=5, max_completion_tokens=6), 400, "max_completion_tokens"),
        (body(stream_options={"include_usage": True}), 400, "stream_options"),
        (body(functions=[{"name": "f"}]), 400, "functions"),
        (body(modalities=["text", "audio"]), 400, "modalities"),
        (body(messages=[{"role": "robot", "content": "x"}]), 400, "messages[0].role"),
        (body(messages=[{"role": "tool", "content": "x"}]), 400, "messages[0].tool_call_id"),
        (
            body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            400,
            "messages[0].content[0]",
        ),
        (body(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "messages[0].content[0].text"),
        (body(messages=[{"role": "assistant", "tool_calls": [{"id": "x"}]}]), 400, "messages[0].tool_calls[0]"),
        (body(model="x" * 600), 400, "model"),
        (body(model="a\0b"), 400, "model"),
        (body(messages=[{"role": "user", "content": "\ud800"}]), 400, None),
        (body(chat_template_kwargs={"x": {"deep": 1}}), None, None),
    ],
)
def test_bodies_of_chats(running: Running, sent, status, param):
    reply = running.raw("POST", CHAT, sent)
    assert status is None or reply.status == status, reply.body
    if status == 400:
        assert reply.error["type"] == "invalid_request_error"
        assert reply.error["message"]
        assert param is None or reply.error["param"] == param
    assert running.chat("hello", model="fake").status == 200


FIELDS = [name for kind in (ChatRequest, CompletionRequest) for name in kind.__struct_fields__ if name != "stream"]
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([CHAT, "/v1/completions"]), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_of_any_field_is_our_fault(running: Running, path, fields):
    sound = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "prompt": "hello", "max_tokens": 2}
    reply = running.raw("POST", path, json.dumps(sound | fields).encode())
    assert reply.status in (200, 400, 404), (fields, reply.body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ],
)
def test_bodies_of_completions(running: Running, fields, param):
    reply = running.post("/v1/completions", model="fake", **fields)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_bounds_of_a_body(daemon: FakeDaemon, running: Running):
    large = running.raw("POST", CHAT, body(user="x" * 300_000))
    assert (large.status, large.error["code"]) == (413, "request_too_large")
    assert running.raw("POST", CHAT, body(), content_type="text/plain").status == 415
    chunked = b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
    head = chunked % (CHAT.encode(), TOKEN.encode())
    assert b" 413 " in spoken(
        running, head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 4
    )
    with gateway(daemon.runtime, body_timeout_s=0.5) as hasty:
        assert b" 408 " in spoken(hasty, head + b"Content-Length: 10\r\n\r\n{")


def spoken(running: Running, said: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", running.port), 10)) as peer:
        peer.sendall(said)
        return peer.recv(4096)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405), ("OPTIONS", CHAT, 405)],
)
def test_other_paths_and_methods(running: Running, method, path, status):
    reply = running.raw(method, path)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN, "Bearer \xe9"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/nothing"])
def test_the_token_is_asked_for(running: Running, given, path):
    reply = running.raw("GET", path, authorization=given)
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in reply.body.decode()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8321", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8321", 200),
        ("box.lan", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("localhost@evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("evil.example:8321", 403),
        ("[::1", 403),
        ("a/b", 403),
    ],
)
def test_the_host_header(daemon: FakeDaemon, named: Running, host, status):
    assert named.raw("GET", "/v1/models", host=host).status == status


@pytest.fixture(scope="module")
def named(daemon: FakeDaemon):
    with gateway(daemon.runtime, allowed_hosts=("box.lan",), cors_origins=("https://page.example",)) as running:
        yield running


def test_two_host_headers_and_none(running: Running):
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert spoken(running, get).split()[1] in (b"400", b"403")
    assert spoken(running, b"GET /health HTTP/1.0\r\n\r\n").split()[1] == b"403"


def test_foreign_web_pages(running: Running, named: Running):
    assert running.raw("GET", "/health", origin="https://page.example").status == 403
    assert named.raw("GET", "/health", origin="https://evil.example").status == 403
    allowed = named.raw("GET", "/v1/models", origin="https://page.example")
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://page.example")
    asks = {"origin": "https://page.example", "access_control_request_method": "POST", "authorization": ""}
    preflight = named.raw("OPTIONS", CHAT, access_control_request_headers="authorization", **asks)
    assert preflight.status == 200


def test_a_stream_on_the_wire(running: Running):
    reply = running.chat("hello", model="fake", stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.events[-1] == "[DONE]"
    assert all(part["object"] == "chat.completion.chunk" for part in reply.events[:-1])


def test_comments_keep_a_long_prefill_alive(running: Running):
    for _ in range(10):  # a pause as long as the prefill leaves no time for them
        reply = running.chat("hello, slow prefill", model="fake", stream=True)
        comments = [line for line in reply.body.decode().split("\n\n") if line.startswith(":")]
        if len(comments) >= 2:
            break
    assert len(comments) >= 2
    assert any("prefill" in line for line in comments)
    assert reply.events[-1] == "[DONE]"


def test_an_error_before_the_first_token_has_its_status(running: Running):
    reply = running.chat("hello", model="gone", stream=True)
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_work(daemon: FakeDaemon, running: Running, stream):
    sent = body(messages=[{"role": "user", "content": "never answered"}], stream=stream)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    with closing(socket.create_connection(("127.0.0.1", running.port), 10)) as peer:
        client = daemon.client()
        peer.sendall(
            head.encode() + f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent
        )
        eventually(lambda: client.status().requests)
        peer.close()
        eventually(lambda: not client.status().requests)


def test_a_deadline(daemon: FakeDaemon):
    with gateway(daemon.runtime, request_timeout_s=0.2) as running:
        reply = running.chat("never answered", model="fake")
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")


def test_cancelled_by_the_operator():
    script = {"reply": "again and again, ", "delay_s": 0.01, "context": 1_000_000}
    with FakeDaemon(script) as daemon, gateway(daemon.runtime) as running, running.openai() as user:
        daemon.wait_ready()
        client = daemon.client()
        stream = user.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "endless"}],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        parts = iter(stream)
        next(parts)
        for request in client.status().requests:
            client.cancel(request.id, anywhere=True)
        with pytest.raises(Exception, match="cancelled"):
            list(parts)


def test_health(running: Running):
    eventually(
        lambda: running.raw("GET", "/health", authorization="").status == 200
    )  # a daemon that pauses is not well
    reply = running.raw("GET", "/health", authorization="")
    assert (reply.status, reply.json) == (200, {"status": "ok"})


def test_metrics(running: Running):
    running.chat("hello", model="fake")
    reply = running.raw("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = reply.body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["inferd_generation_tokens_total"]) > 0
    assert float(values['inferd_request_success_total{finished_reason="stop"}']) >= 1
    assert values['inferd_model_ready{model_name="fake"}'] == "1.0"
    assert float(values["inferd_time_to_first_token_seconds_count"]) >= 1
    assert "# TYPE inferd_generation_tokens_total counter" in lines
    assert "# TYPE inferd_ready gauge" in lines


def test_metrics_are_read_by_a_parser(running: Running):
    parser = pytest.importorskip("prometheus_client.parser")
    text = running.raw("GET", "/metrics").body.decode()
    assert len(list(parser.text_string_to_metric_families(text))) > 10


def test_a_daemon_that_dies_and_comes_back():
    with FakeDaemon({"reply": "yes"}) as daemon, gateway(daemon.runtime) as running:
        daemon.wait_ready()
        assert running.chat(model="fake").status == 200
        daemon.kill()
        assert running.raw("GET", "/health").status == 503
        reply = running.chat(model="fake")
        assert (reply.status, reply.error["type"]) == (503, "service_unavailable_error")
        daemon.start()
        eventually(lambda: running.raw("GET", "/health").status == 200)
        assert running.chat(model="fake").status == 200
