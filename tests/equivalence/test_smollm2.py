"""The default model against transformers on the dequantised weights of the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from inferd.load.vocab import open_vocabulary
from tests.equivalence import smollm2_oracle
from tests.equivalence.oracle import relative_error
from tests.equivalence.rig import Rig, build, submit
from tests.smollm2 import smollm2_path

pytestmark = pytest.mark.smollm2

TOLERANCE = 1e-4
STORY = (
    "The harbour lay still under the morning fog, and Mara counted the boats as she had every day since her father "
    "left: four blue, two white, one with a broken mast. 'You again,' said the keeper. She nodded, and asked him what "
    "time the ferry was due. In 1921 the line ran twice a day; now it came on Tuesdays, if the engine was willing. "
)
CODE = (
    "def merge(left, right):\n    out = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n            out.append(left[i])\n            i += 1\n        else:\n"
    "            out.append(right[j])\n            j += 1\n    return out + left[i:] + right[j:]\n\n"
)
MIXED = "Ünïcödé, 数字 1234567, emoji 😀👩‍👩‍👧 and\ttabs; E = mc^2 [1] (see §4.2)... "
QUESTIONS = (
    "What is the capital of France?",
    "Give me three names for a cat.",
    "Explain why the sky is blue in two sentences.",
    "Write a haiku about rain.",
    "What is 17 + 25?",
    "List the days of the week.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "How do I boil an egg?",
    "Name a large river in Africa.",
    "Write a Python function that adds two numbers.",
    "What is the opposite of cold?",
    "Summarise the story of Noah in one line.",
    "Why do cats purr?",
    "Count from one to ten.",
    "What colour do you get from blue and yellow?",
    "Tell me a short joke.",
    "What is photosynthesis?",
    "Name two planets.",
    "Is water wet?",
)


def ids_of(text: str) -> list[int]:
    return open_vocabulary(smollm2_path()).codec.encode(text, special_tokens=True)


def chat(question: str) -> list[int]:
    return ids_of(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def oracle() -> Any:
    return smollm2_oracle.load(smollm2_path())


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One engine with room for all chats at once, and chunks that cut the long prompts."""
    rig = build(smollm2_path(), context=512, block_size=16, blocks=160, batch=20, chunk=96, budget=256)
    yield rig
    rig.engine.close()


def prompt_logits(rig: Rig, tokens: Sequence[int]) -> torch.Tensor:
    """Return the engine's logits at every position of a prompt."""
    rig.tap.rows.clear()
    rig.tap.other_logits.clear()
    steps = rig.tap.counts["steps"]
    result = rig.run([submit("p", tokens, 1, prompt_logprobs=0)])["p", 0]
    assert result.error is None
    assert rig.tap.counts["steps"] - steps == -(-len(tokens) // 96), "the prompt ran in chunks"
    (row,) = rig.tap.rows
    return torch.cat((*rig.tap.other_logits, row.logits.unsqueeze(0)))


def check_prompt(rig: Rig, oracle: Any, text: str) -> None:
    tokens = ids_of(text)[:320]
    assert len(tokens) >= 150
    got, want = prompt_logits(rig, tokens), smollm2_oracle.logits(oracle, tokens)
    assert got.shape == want.shape
    error = relative_error(got, want)
    assert error <= TOLERANCE, error


def check_chats(rig: Rig, oracle: Any, questions: Sequence[str], count: int) -> None:
    """Greedy answers in one batch; each token is the oracle's after the same tokens, where it is sure."""
    rig.tap.rows.clear()
    prompts = [chat(question) for question in questions]
    results = rig.run([submit(str(i), prompt, count) for i, prompt in enumerate(prompts)])
    assert rig.tap.counts["widest"] >= len(questions), "all answers were made in one batch"
    compared = skipped = 0
    for i, prompt in enumerate(prompts):
        ids = results[str(i), 0].ids
        assert len(ids) == count
        want = smollm2_oracle.logits(oracle, [*prompt, *ids[:-1]], last=count)
        got = torch.stack([row.logits for row in rig.tap.rows if row.request == str(i)])
        assert relative_error(got, want) <= TOLERANCE, questions[i]
        best = want.topk(2).values
        sure = best[:, 0] - best[:, 1] > 10 * TOLERANCE * want.abs().amax(-1)
        wrong = want.argmax(-1) != torch.tensor(ids)
        assert not bool((wrong & sure).any()), questions[i]
        skipped += int((~sure).sum())
        compared += int(sure.sum())
    assert skipped < 0.02 * (compared + skipped), (compared, skipped)
    rig.assert_empty()


def test_logits_of_a_long_prompt(rig: Rig, oracle: Any) -> None:
    check_prompt(rig, oracle, (STORY + MIXED) * 2)


def test_chats_in_one_batch(rig: Rig, oracle: Any) -> None:
    check_chats(rig, oracle, QUESTIONS[:5], 20)


@pytest.mark.parametrize(("part", "heads"), [("q_proj", 9), ("k_proj", 3), ("k_proj", 1)])
def test_a_wrong_order_of_q_or_k_rows_is_seen(rig: Rig, oracle: Any, part: str, heads: int) -> None:
    """5.6: q or k left permuted, or k cut into the wrong heads, moves logits far past the tolerance."""
    tokens = chat("Name a large river in Africa.")
    got = prompt_logits(rig, tokens)
    assert relative_error(got, smollm2_oracle.logits(oracle, tokens)) <= TOLERANCE
    right = {"q_proj": 9, "k_proj": 3}[part]
    with reordered(oracle, part, lambda rows: file_order(rows, right)[wrong_order(rows, right, heads)]):
        assert relative_error(got, smollm2_oracle.logits(oracle, tokens)) > 100 * TOLERANCE
    assert relative_error(got, smollm2_oracle.logits(oracle, tokens)) <= TOLERANCE


def file_order(rows: int, heads: int) -> torch.Tensor:
    return smollm2_oracle.row_order(rows, heads).argsort()


def wrong_order(rows: int, right: int, heads: int) -> torch.Tensor:
    """Leave the rows as they lie in the file, or undo the permutation of another number of heads."""
    return torch.arange(rows) if heads == right else smollm2_oracle.row_order(rows, heads)


@contextmanager
def reordered(oracle: Any, part: str, order: Callable[[int], torch.Tensor]) -> Iterator[None]:
    """Reorder the rows of one matrix in every layer of the oracle for a while."""
    matrices = [getattr(layer.self_attn, part).weight for layer in oracle.model.layers]
    saved = [matrix.data for matrix in matrices]
    for matrix in matrices:
        matrix.data = matrix.data[order(len(matrix))]
    yield
    for matrix, data in zip(matrices, saved, strict=True):
        matrix.data = data


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", [STORY * 4, CODE * 3, MIXED * 8], ids=["story", "code", "mixed"])
def test_logits_of_every_prompt(rig: Rig, oracle: Any, text: str) -> None:
    check_prompt(rig, oracle, text)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_twenty_chats_of_64_tokens(rig: Rig, oracle: Any) -> None:
    check_chats(rig, oracle, QUESTIONS, 64)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_chats_with_drafts_tight_blocks_and_expanded_heads(oracle: Any) -> None:
    """The same answers from an engine that verifies n-grams, preempts and keeps K/V of every query head."""
    rig = build(
        smollm2_path(),
        context=192,
        block_size=16,
        blocks=24,
        batch=8,
        chunk=16,
        plugins={"draft": "ngram"},
        draft={"min_n": 1},
        expand_gqa=True,
    )
    questions = QUESTIONS[:8]
    plain = rig_answers(rig, questions)
    assert rig.preemptions > 0
    assert rig.accepted > 0
    for question, ids in zip(questions, plain, strict=True):
        want = smollm2_oracle.logits(oracle, [*chat(question), *ids[:-1]], last=len(ids))
        best = want.topk(2).values
        sure = best[:, 0] - best[:, 1] > 10 * TOLERANCE * want.abs().amax(-1)
        assert not bool(((want.argmax(-1) != torch.tensor(ids)) & sure).any()), question
    rig.assert_empty()


def rig_answers(rig: Rig, questions: Sequence[str]) -> list[list[int]]:
    results = rig.run([submit(str(i), chat(question), 64) for i, question in enumerate(questions)])
    return [results[str(i), 0].ids for i in range(len(questions))]
