"""Log-probabilities are of the raw logits, with real ranks and N alternatives (case 2.11)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferd.engine.sampler.logprobs import token_logprobs

LOGITS = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 20)).astype(np.float32))


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_values_ranks_and_alternatives(top: int) -> None:
    tokens = [4, 17, int(LOGITS[2].argmax())]
    want = LOGITS.double().log_softmax(-1)
    for row, entry in enumerate(token_logprobs(LOGITS, tokens, [top] * 3)):
        order = want[row].argsort(descending=True).tolist()
        assert entry.token == tokens[row]
        assert entry.logprob == pytest.approx(float(want[row, tokens[row]]), abs=1e-5)
        assert entry.rank == order.index(tokens[row]) + 1
        assert [i for i, _ in entry.top] == order[:top]
        assert [v for _, v in entry.top] == pytest.approx(want[row, order[:top]].tolist(), abs=1e-5)


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    assert [len(e.top) for e in token_logprobs(LOGITS, [1, 2, 3], [0, 7, 25])] == [0, 7, 20]


def test_equals_share_the_better_rank() -> None:
    flat = torch.zeros(1, 5)
    assert token_logprobs(flat, [3], [0])[0].rank == 1
