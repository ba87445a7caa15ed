"""The real OpenAI client against the gateway."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from inferd_client.testing import FakeDaemon
from tests.gateway.running import Running, gateway

HELLO = "Hi there, ünïcode!"


def test_models(client: OpenAI):
    assert [model.id for model in client.models.list()] == ["fake", "other"]
    assert client.models.retrieve("other").owned_by == "inferd"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gone")


def test_a_chat(client: OpenAI):
    answer = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hello"}])
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (HELLO, "assistant", "stop")
    assert answer.model == "fake"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(HELLO.encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_with_usage(client: OpenAI):
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == HELLO
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(HELLO.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_no_usage_unless_asked(client: OpenAI):
    stream = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hello"}], stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


def test_n_choices_in_one_answer_and_in_one_stream(client: OpenAI):
    ask = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "n": 3}
    whole = client.chat.completions.create(**ask)
    assert [(c.index, c.message.content) for c in whole.choices] == [(i, HELLO) for i in range(3)]
    texts = {0: "", 1: "", 2: ""}
    ends = []
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == {0: HELLO, 1: HELLO, 2: HELLO}
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"stop": " three"}, "one two", "stop"),
        ({"stop": ["five", "two"]}, "one ", "stop"),
        ({"max_tokens": 7}, "one two", "length"),
        ({"max_completion_tokens": 3}, "one", "length"),
        ({"seed": -5, "temperature": 0.5, "top_p": 0.9, "user": "me", "logit_bias": {"65": -100}}, None, "stop"),
        (
            {"frequency_penalty": 0.5, "presence_penalty": -0.5, "extra_body": {"top_k": 5, "unheard_of": 1}},
            None,
            "stop",
        ),
    ],
)
def test_options_of_sampling(client: OpenAI, options, text, reason):
    answer = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "count"}], **options)
    assert answer.choices[0].message.content == (text or "one two three four five")
    assert answer.choices[0].finish_reason == reason


def test_logprobs_of_a_chat(client: OpenAI):
    ask = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**ask).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert bytes(b for token in whole.content for b in token.bytes or ()).decode() == HELLO
    assert whole.content[0].token == "H"
    assert whole.content[0].logprob == 0.0
    streamed = [c.choices[0].logprobs for c in client.chat.completions.create(**ask, stream=True) if c.choices]
    tokens = [token for part in streamed if part for token in part.content or ()]
    assert [token.token for token in tokens] == [token.token for token in whole.content]


def test_completions(client: OpenAI):
    answer = client.completions.create(model="fake", prompt="hello", max_tokens=100)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (HELLO, "stop")
    short = client.completions.create(model="fake", prompt="count")
    assert (short.choices[0].text, short.choices[0].finish_reason) == ("one two three fo", "length")
    ids = client.completions.create(model="fake", prompt=list(b"hello"), max_tokens=2)
    assert ids.choices[0].text == "Hi"


def test_several_prompts_with_several_choices(client: OpenAI):
    ask = {"model": "fake", "prompt": ["hello", "count"], "n": 2, "max_tokens": 3}
    answer = client.completions.create(**ask)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "Hi "), (1, "Hi "), (2, "one"), (3, "one")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    texts = ["", "", "", ""]
    for chunk in client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["Hi ", "Hi ", "one", "one"]


def test_logprobs_of_a_completion(client: OpenAI):
    answer = client.completions.create(model="fake", prompt="hello", max_tokens=12, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == [*"Hi there, ", "bytes:\\xc3", "bytes:\\xbc"]
    assert logprobs.token_logprobs == [0.0] * 12
    assert logprobs.text_offset == [*range(10), 10, 10]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"H": 0.0}


def test_reasoning_apart_from_content(client: OpenAI):
    ask = {"model": "fake", "messages": [{"role": "user", "content": "ponder"}]}
    message = client.chat.completions.create(**ask).choices[0].message
    assert message.content == "Forty-two."
    assert message.reasoning_content == "hmm, well"  # type: ignore[attr-defined]
    deltas = [c.choices[0].delta for c in client.chat.completions.create(**ask, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hmm, well"
    assert "".join(delta.content or "" for delta in deltas) == "Forty-two."


def test_roles_parts_and_template_arguments_reach_the_template(client: OpenAI):
    answer = client.chat.completions.create(
        model="other",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "say"}, {"type": "text", "text": " this"}]},
        ],
        reasoning_effort="low",
        extra_body={"enable_thinking": False, "chat_template_kwargs": {"style": "plain"}},
    )
    said = answer.choices[0].message.content or ""
    for part in ("system\nBe brief.", "user\nsay this", "enable_thinking\nfalse", 'style\n"plain"', 'effort\n"low"'):
        assert part in said


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"model": "gone"}, openai.NotFoundError, "model_not_found"),
        ({"model": "/etc/passwd"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_value"),
        ({"n": 10**9}, openai.BadRequestError, "invalid_value"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "nan now"}]}, openai.InternalServerError, "numeric_error"),
    ],
)
def test_errors_of_the_daemon(client: OpenAI, options, error, code):
    with pytest.raises(error) as caught:
        client.chat.completions.create(
            **{"model": "fake", "messages": [{"role": "user", "content": "hello"}]} | options
        )
    assert caught.value.code == code


def test_an_error_after_the_first_token_ends_the_stream(client: OpenAI):
    stream = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "nan now"}], stream=True
    )
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "numeric_error"


def test_a_wrong_key(running: Running):
    with pytest.raises(openai.AuthenticationError), Running(running.port, "wrong").openai() as client:
        client.models.list()


def test_a_full_queue_says_when_to_come_back():
    config = {"daemon": {"max_queue": 1}}
    script = {"delay_s": 0.05, "reply": "x" * 1000, "max_sequences": 1}
    with FakeDaemon(script, config=config) as daemon, gateway(daemon.runtime) as running:
        daemon.wait_ready()
        with running.openai() as client:
            stream = client.completions.create(model="fake", prompt="a", max_tokens=1000, stream=True)
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="fake", prompt=["a"] * 8)
            assert caught.value.code == "overloaded"
            assert int(caught.value.response.headers["retry-after"]) >= 1
            stream.close()
