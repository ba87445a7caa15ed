"""Choices that end apart from each other, and prompts at the edges of what text can be."""

from __future__ import annotations

from typing import Any

import pytest

from inferd_client import Client
from tests.e2e.harness import eventually, the_model

pytestmark = pytest.mark.daemon

PROMPT = [31, 9, 250, 60, 61, 62]


def test_a_stop_string_of_one_choice_leaves_the_others(client: Client) -> None:
    options: dict[str, Any] = {"n": 4, "seed": 5, "max_tokens": 40, "ignore_eos": True, "temperature": 1.2}
    whole = client.generate(PROMPT, **options)
    texts = [choice.text for choice in whole.choices]
    pairs = [(i, text[at : at + 2]) for i, text in enumerate(texts) for at in range(len(text) - 1)]
    ended, stop = next(
        (i, pair) for i, pair in pairs if pair.isascii() and not any(pair in t for j, t in enumerate(texts) if j != i)
    )
    cut = client.generate(PROMPT, stop=[stop], **options)
    for index, (choice, before) in enumerate(zip(cut.choices, whole.choices, strict=True)):
        if index == ended:
            assert (choice.finish, choice.stop, choice.text) == ("stop", stop, before.text[: before.text.index(stop)])
            assert choice.ids == before.ids[: len(choice.ids)]
        else:
            assert (choice.finish, choice.text, choice.ids) == ("length", before.text, before.ids)
    assert cut.usage is not None
    assert cut.usage.completion_tokens == sum(len(choice.ids) for choice in cut.choices) < 160
    eventually(lambda: the_model(client, "tiny").running == 0)


def test_min_tokens_holds_back_a_stop_string(client: Client) -> None:
    (letter,) = client.tokenize("e")
    options: dict[str, Any] = {"logit_bias": {letter: 200.0}, "temperature": 0, "max_tokens": 20}
    for least in (0, 1, 5):
        got = client.generate(PROMPT, stop=["e"], min_tokens=least, **options)
        assert (got.text, len(got.ids), got.finish) == ("e" * least, least + 1, "stop")


@pytest.mark.parametrize(
    "prompt", [" ", "\n\t ", "\0", "\x1b[2J", "\u202e", "\ufffd", "<|im_end|>", "<|image|>", "é" * 9]
)
def test_odd_text_is_a_prompt_like_any(client: Client, prompt: str) -> None:
    got = client.generate(prompt, max_tokens=3, ignore_eos=True, temperature=0)
    assert (got.finish, len(got.ids)) == ("length", 3)
    assert got.usage is not None
    assert got.usage.prompt_tokens == len(client.tokenize(prompt))
    assert client.generate(client.tokenize(prompt), max_tokens=3, ignore_eos=True, temperature=0).ids == got.ids


@pytest.mark.parametrize("end", [False, True])
def test_one_token_is_one_token(client: Client, end: bool) -> None:
    """3.14 and 4.12: a cap of one, with and without an end token in its place; an end as the first of two."""
    bias = {"logit_bias": {1: 200.0}} if end else {"ignore_eos": True}
    for cap in (1, 2):
        got = client.generate(PROMPT, max_tokens=cap, temperature=0, **bias)
        assert len(got.ids) == (1 if end else cap)
        assert got.finish == ("stop" if end else "length")
        assert got.usage is not None
        assert got.usage.completion_tokens == len(got.ids)
