"""The runner on a tiny model: greedy ids, verification, prompt logprobs, bad numerics, stages."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.engine.batch import Row
from inferd.engine.local import LocalExecutor
from inferd.engine.request import Sequence
from inferd.model.decoder import Decoder
from inferd.plugin.types import RankPlacement
from inferd_client.protocol import SamplingParams
from tests.engine.rig import Rig, runner
from tests.model.harness import load
from tests.model.oracle import hf_logits
from tests.tiny import tiny_llama

torch.set_num_threads(1)
GREEDY = SamplingParams(temperature=0)
PROMPT = [(13 * i + 5) % 280 + 4 for i in range(11)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    return load(path, context=64)


def plain(decoder: Decoder, sampling: SamplingParams, count: int, **fields: Any) -> list[int]:
    """Decode one token a step."""
    rig = Rig(runner(decoder))
    sequence = rig.add(0, PROMPT, sampling, **fields)
    while sequence.num_output < count:
        rig.advance(sequence)
    return sequence.tokens[len(PROMPT) :]


def test_greedy_ids_equal_transformers(path: Path, decoder: Decoder) -> None:
    tokens = list(PROMPT)
    for _ in range(12):
        tokens.append(int(hf_logits(path, tokens)[-1].argmax()))
    assert plain(decoder, GREEDY, 12) == tokens[len(PROMPT) :]


def test_ragged_steps_keep_each_sequence_apart(decoder: Decoder) -> None:
    """One decodes, one verifies, one prefills in chunks; each gets what it gets alone."""
    warm = SamplingParams(temperature=0.9, seed=5)
    alone = plain(decoder, GREEDY, 9), plain(decoder, warm, 9, seed=5), plain(decoder, warm, 1, seed=6)
    rig = Rig(runner(decoder))
    a, b, c = rig.add(2, PROMPT, GREEDY), rig.add(0, PROMPT, warm, seed=5), rig.add(1, PROMPT, warm, seed=6)
    rig.step([Row(a, 0, 11), Row(b, 0, 11)])
    rig.step([Row(a, 11, 1), Row(b, 11, 3, (alone[1][1], 0)), Row(c, 0, 4, samples=False)])
    assert len(b.tokens) == 11 + 3
    rig.step([Row(a, 12, 1), Row(b, 13, 1), Row(c, 4, 7)])
    rig.remove(c)
    while a.num_output < 9 or b.num_output < 9:
        rig.step([Row(s, s.num_computed, 1) for s in (a, b)])
    assert (a.tokens[11:20], b.tokens[11:20], c.tokens[11:]) == alone


SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.9),
    "filtered": SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
    "penalised": SamplingParams(temperature=0.8, repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=0.5),
    "greedy penalised": SamplingParams(temperature=0, frequency_penalty=1.5),
    "edited": SamplingParams(
        temperature=0.7, logit_bias={2: 9.0, 40: 2.0}, min_tokens=6, allowed_token_ids=tuple(range(90))
    ),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_verification_keeps_the_tokens_of_plain_decoding(decoder: Decoder, name: str) -> None:
    """Cases 1.7, 1.10, 1.11: drafts right, partly right and wrong, of 1 to 6 tokens."""
    rng = random.Random(name)
    fields: dict[str, Any] = {"seed": 77, "bad_word_ids": ((40, 41), (7,))}
    want = plain(decoder, SAMPLINGS[name], 30, **fields)
    rig = Rig(runner(decoder))
    sequence = rig.add(3, PROMPT, SAMPLINGS[name], **fields)
    rig.advance(sequence)
    accepted = drafted = 0
    while sequence.num_output < 24:
        at = sequence.num_output
        drafts = tuple(
            token if rng.random() < 0.8 else rng.randrange(280) for token in want[at : at + rng.randint(0, 6)]
        )
        output = rig.advance(sequence, drafts)
        accepted, drafted = accepted + len(output.ids) - 1, drafted + len(drafts)
        assert len(output.ids) <= len(drafts) + 1
    assert sequence.tokens[len(PROMPT) :][:24] == want[:24]
    assert 5 < accepted < drafted


def test_logprobs_of_every_accepted_token(path: Path, decoder: Decoder) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.5, logprobs=3)
    want = plain(decoder, sampling, 4, seed=3)
    rig = Rig(runner(decoder))
    sequence = rig.add(0, PROMPT, sampling, seed=3)
    outputs = [rig.advance(sequence), rig.advance(sequence, (want[1], want[2], 0))]
    entries = [entry for output in outputs for entry in output.logprobs or ()]
    raw = hf_logits(path, PROMPT + want)[len(PROMPT) - 1 : -1].double().log_softmax(-1)
    assert [e.token for e in entries] == want
    for row, entry in zip(raw, entries, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        assert [i for i, _ in entry.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("chunks", [(11,), (4, 7), (1, 2, 8)])
def test_prompt_logprobs_over_chunks(
    path: Path, decoder: Decoder, chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.engine.runner.LOGIT_VALUES", 3 * 290)  # three rows at a time
    rig = Rig(runner(decoder))
    sequence = rig.add(1, PROMPT, SamplingParams(temperature=0, prompt_logprobs=2))
    other = rig.add(0, PROMPT[:3], GREEDY)
    rig.step([Row(other, 0, 3)])
    entries: list[Any] = []
    start = 0
    for length in chunks:
        last = start + length == len(PROMPT)
        output = rig.step([Row(other, other.num_computed, 1), Row(sequence, start, length, samples=last)])
        entries += output.prompt_logprobs.get(1, [])
        start += length
    raw = hf_logits(path, PROMPT).double().log_softmax(-1)
    assert [e.token for e in entries] == PROMPT[1:]
    for row, entry in zip(raw, entries, strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        assert entry.rank == int((row > row[entry.token]).sum()) + 1
        assert [i for i, _ in entry.top] == row.topk(2).indices.tolist()


class Spoiled:
    """Logits of a decoder with chosen rows of one call replaced."""

    def __init__(self, decoder: Decoder, rows: dict[int, float]) -> None:
        self._decoder = decoder
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._decoder.logits(hidden)
        for row, value in self.rows.items():
            logits[row] = value
        return logits


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_bad_numerics_end_one_sequence_only(decoder: Decoder, value: float) -> None:
    spoiled: Any = Spoiled(decoder, {})
    rig = Rig(runner(spoiled))
    sequences = [rig.add(i, PROMPT, GREEDY) for i in range(3)]
    rig.step([Row(s, 0, 11) for s in sequences])
    spoiled.rows = {1: value}
    rows = rig.step([Row(s, 11, 1) for s in sequences]).rows
    assert [bool(row.error) for row in rows] == [False, True, False]
    assert rows[1].ids == ()
    assert "no finite logits at position 12" in rows[1].error
    assert rows[0].ids == rows[2].ids == plain(decoder, GREEDY, 2)[1:]
    rig.remove(sequences[1])
    spoiled.rows = {}
    again = rig.add(1, PROMPT, GREEDY)
    rig.step([Row(again, 0, 11)])
    assert again.tokens[11:] == plain(decoder, GREEDY, 1)


def test_bad_numerics_after_good_drafts_keep_the_good_ones(decoder: Decoder) -> None:
    want = plain(decoder, GREEDY, 5)
    spoiled: Any = Spoiled(decoder, {})
    rig = Rig(runner(spoiled))
    sequence = rig.add(0, PROMPT, GREEDY)
    rig.advance(sequence)
    spoiled.rows = {2: float("nan")}
    output = rig.advance(sequence, tuple(want[1:5]))
    assert list(output.ids) == want[1:3]
    assert not output.error


def test_rules_that_leave_no_token_are_an_error_of_that_request(decoder: Decoder) -> None:
    rig = Rig(runner(decoder))
    stuck = rig.add(0, PROMPT, SamplingParams(allowed_token_ids=(2,), min_tokens=3))
    fine = rig.add(1, PROMPT, GREEDY)
    rows = rig.step([Row(stuck, 0, 11), Row(fine, 0, 11)]).rows
    assert "no token is left at position 11" in rows[0].error
    assert rows[1].ids == plain(decoder, GREEDY, 1)


class Pipe:
    """Collectives between two runners of one process."""

    def __init__(self) -> None:
        self.sent: deque[tuple[torch.Tensor, int]] = deque()

    def send(self, x: torch.Tensor, rank: int) -> None:
        self.sent.append((x.clone(), rank))

    def recv(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        values, to = self.sent.popleft()
        assert (to, rank) == (1, 0)
        return x.copy_(values)


def test_two_stages_give_the_tokens_of_one(path: Path, decoder: Decoder) -> None:
    pipe: Any = Pipe()
    places = [RankPlacement(0, "cpu", (0,), True, False), RankPlacement(1, "cpu", (1,), False, True)]
    stages = [runner(load(path, context=64, placement=place), strategy=pipe, placement=place) for place in places]
    assert [list(stage.kv) for stage in stages] == [[0], [1]]
    rig = Rig(stages[1])
    sequence = rig.add(0, PROMPT, SamplingParams(temperature=0.9), seed=4)
    while sequence.num_output < 6:
        batch = rig.batch([Row(sequence, sequence.num_computed, sequence.num_tokens - sequence.num_computed)])
        assert stages[0].step(batch) is None
        output = stages[1].step(batch)
        assert output is not None
        sequence.num_computed = sequence.num_tokens
        sequence.tokens.extend(output.rows[0].ids)
    assert sequence.tokens[11:] == plain(decoder, SamplingParams(temperature=0.9), 6, seed=4)


def test_steps_are_collected_in_order(decoder: Decoder) -> None:
    rig = Rig(runner(decoder))
    executor = LocalExecutor(rig.runner)
    sequences: list[Sequence] = [rig.add(i, PROMPT[: 5 + i], GREEDY) for i in range(2)]
    for sequence in sequences:
        executor.submit(rig.batch([Row(sequence, 0, sequence.num_tokens)]))
    want = [rig.runner.step(rig.batch([Row(s, 0, s.num_tokens)])) for s in sequences]
    for step in want:
        got = executor.collect()
        assert step is not None
        assert got.rows == step.rows
        assert got.elapsed_s > 0
