"""Stop handling as a pure function (1.7, 1.8, 3.12, 8.1)."""

from __future__ import annotations

import itertools

import pytest

from inferd.engine.batch import Row, RowOutput
from inferd.engine.commit import commit_row, cut
from inferd.engine.request import Sequence
from inferd_client.protocol import SamplingParams, TokenLogprob

STOP = 9


def sequence(**fields) -> Sequence:
    base = {
        "key": 1,
        "request": "r",
        "choice": 0,
        "client": "c",
        "tokens": [1, 2, 3],
        "num_prompt": 3,
        "sampling": SamplingParams(),
        "seed": 0,
        "max_tokens": 5,
        "stop_ids": frozenset({STOP}),
    }
    return Sequence(**(base | fields))


@pytest.mark.parametrize(("stop_at", "cap", "before"), list(itertools.product(range(7), range(1, 8), range(3))))
def test_stop_wins_inside_the_budget_and_length_past_it(stop_at, cap, before):
    ids = [1, 2, 3, 4, 5, 6]
    if stop_at < len(ids):
        ids[stop_at] = STOP
    if before >= cap:
        return
    kept, finish, token = cut(ids, num_output=before, max_tokens=cap, min_tokens=0, stop_ids=frozenset({STOP}))
    room = cap - before
    if stop_at < min(room, len(ids)):
        assert (kept, finish, token) == (stop_at + 1, "stop", STOP)
    elif len(ids) >= room:
        assert (kept, finish, token) == (room, "length", None)
    else:
        assert (kept, finish, token) == (len(ids), None, None)


def test_a_stop_before_min_tokens_does_not_count():
    ids = [STOP, STOP, STOP]
    kept = [
        cut(ids, num_output=0, max_tokens=9, min_tokens=least, stop_ids=frozenset({STOP})).kept for least in range(4)
    ]
    assert kept == [1, 2, 3, 3]


def test_drafts_past_a_stop_are_neither_accepted_nor_output():
    """8.1: [d, d, EOS, d, d, bonus]: five accepted by the sampler, three committed."""
    seq = sequence(max_tokens=50)
    row = Row(seq, 2, 6, (4, 5, STOP, 6, 7))
    logprobs = [TokenLogprob(token=i, logprob=-1.0, rank=1) for i in (4, 5, STOP, 6, 7, 8)]
    ids, kept = commit_row(row, RowOutput([4, 5, STOP, 6, 7, 8], logprobs))
    assert ids == (4, 5, STOP)
    assert kept == tuple(logprobs[:3])
    assert (seq.drafted, seq.accepted, seq.num_output) == (5, 3, 3)
    assert (seq.finish, seq.stop_token) == ("stop", STOP)


def test_accepted_counts_all_drafts_and_not_the_sampled_id():
    seq = sequence(max_tokens=50)
    commit_row(Row(seq, 2, 3, (4, 5)), RowOutput([4, 5, 6]))
    assert (seq.drafted, seq.accepted, seq.num_output, seq.finish) == (2, 2, 3, None)
    commit_row(Row(seq, 5, 3, (4, 5)), RowOutput([7]))
    assert (seq.drafted, seq.accepted, seq.num_output) == (4, 2, 4)
