"""The gateway over the real daemon: a tiny model with a template of ours, and the default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.harness import Served, ready, serving
from tests.gateway.running import Running, gateway
from tests.smollm2 import smollm2_path
from tests.tiny import tiny_llama

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)
ASK: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.mark.daemon
def test_a_template_that_opens_the_reasoning(tmp_path: Path):
    """What its model says belongs to the reasoning until the tag ends it, unless thinking is off."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    model = tiny_llama(tmp_path / "tiny")
    config = {"models": {"tiny": {"chat_template": str(template)}}, "engine": {"threads": 1, "max_sequences": 2}}
    with serving(model, config) as served, gateway(served.runtime) as running:
        client = served.client()
        ready(client, str(model))
        options: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
        expected = client.chat("hi", **options).text
        plain = client.chat("hi", template_args={"enable_thinking": False}, **options).text
        fields = {"messages": ASK, **options}
        thought = running.chat(**fields).json
        assert thought["model"] == "tiny"
        assert thought["choices"][0]["message"]["reasoning_content"] == expected.lstrip("\r\n")
        assert thought["choices"][0]["message"]["content"] == ""
        said = running.chat(**fields, enable_thinking=False).json["choices"][0]["message"]
        assert (said["content"], said.get("reasoning_content")) == (plain, None)
        with_tools = running.chat(**fields, tools=[{"type": "function", "function": {"name": "f"}}])
        assert with_tools.status == 200


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[Served, Running]]:
    path = smollm2_path()
    with serving(path, {"engine": {"max_context": 512}}) as served, gateway(served.runtime) as running:
        ready(served.client(), str(path))
        yield served, running


@pytest.mark.daemon
@pytest.mark.smollm2
@pytest.mark.timeout(300)
def test_the_default_model_through_the_openai_client(smollm2: tuple[Served, Running]):
    served, running = smollm2
    with running.openai(timeout=120) as client:
        _chat_equals_the_daemons(client, served)
        _logprobs_spell_the_text(client)
    refused = running.chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert (refused.status, refused.error["param"]) == (400, "tools")


def _chat_equals_the_daemons(client: OpenAI, served: Served) -> None:
    ask: list[Any] = [{"role": "user", "content": "Name the capital of France."}]
    expected = served.client().chat(ask, temperature=0, max_tokens=6)
    options: dict[str, Any] = {"model": client.models.list().data[0].id, "messages": ask, "temperature": 0}
    whole = client.chat.completions.create(**options, max_tokens=6)
    assert whole.choices[0].message.content == expected.text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == expected.prompt_tokens
    stream = client.chat.completions.create(**options, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected.text


def _logprobs_spell_the_text(client: OpenAI) -> None:
    name = client.models.list().data[0].id
    answer = client.completions.create(model=name, prompt="Once upon a", temperature=0, max_tokens=4, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.token_logprobs is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert logprob == max(top.values())  # greedy
        assert top[token] == logprob
        assert len(top) == 3
