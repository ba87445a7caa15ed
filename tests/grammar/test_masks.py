"""Masks in bulk are those of each matcher alone, with and without drafts; and they reach the logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from inferd.engine.sampler.masks import apply_masks, unpack_on, unpack_on_host
from inferd.grammar.dialect import to_llguidance
from inferd.grammar.masks import Constrained, MaskMaker
from inferd.grammar.matcher import Matcher
from inferd.link import Grammar
from tests.grammar.judge import PERSON, Oracle, choice, regex, schema
from tests.tiny import tiny_llama

SIZE = 290
OUT = -torch.inf


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tiny_llama(tmp_path_factory.mktemp("masks")), SIZE)


def matcher(oracle: Oracle, grammar: Grammar, output: str = "") -> Matcher:
    made = Matcher(LLMatcher(oracle.tokenizer, to_llguidance(grammar), log_level=0))
    ids = oracle.vocabulary.encode(output)
    assert made.accept(ids) == len(ids)
    return made


def tokens(mask: np.ndarray) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=SIZE)
    return set(np.flatnonzero(bits).tolist())


def test_many_rows_with_and_without_drafts(oracle: Oracle) -> None:
    encode = oracle.vocabulary.encode
    rows = [
        (schema(PERSON), '{"name', []),
        (regex("(ab)*"), "a", encode("ba")),
        (regex("a{3}"), "", encode("aaaa")),
        (choice("x", "yz"), "", []),
        (regex("a{3}"), "a", encode("zz")),
        (regex("[ab]+"), "", [1]),
    ]
    maker = MaskMaker(SIZE, 2)
    for _ in range(2):
        found = maker.make([Constrained(matcher(oracle, g, o), d) for g, o, d in rows])
        at = 0
        for grammar, output, drafts in rows:
            said = encode(output)
            for place in range(len(drafts) + 1):
                before = [*said, *drafts[:place]]
                assert tokens(found[at + place]) == oracle.allowed(grammar, before)
                if place < len(drafts) and drafts[place] not in tokens(found[at + place]):
                    assert all((found[at + later] == -1).all() for later in range(place + 1, len(drafts) + 1))
                    break
            at += len(drafts) + 1
        assert at == len(found)


def test_making_masks_moves_no_matcher(oracle: Oracle) -> None:
    made = matcher(oracle, regex("(ab)*"))
    maker = MaskMaker(SIZE)
    first = maker.make([Constrained(made, oracle.vocabulary.encode("abab"))])[0].copy()
    assert (maker.make([Constrained(made, ())])[0] == first).all()
    assert made.allowed(oracle.vocabulary.encode("abax")) == 3
    assert (maker.make([Constrained(made, ())])[0] == first).all()


def test_a_matcher_says_where_the_output_ends(oracle: Oracle) -> None:
    encode = oracle.vocabulary.encode
    made = matcher(oracle, regex("a{3}"))
    assert made.accept(encode("aa")) == 2
    assert not made.complete
    assert made.accept([*encode("a"), 1, 1]) == 1
    assert made.complete
    assert made.error == ""
    open_end = matcher(oracle, regex("a+"))
    assert open_end.accept([*encode("aa"), 3, *encode("a")]) == 3
    assert open_end.complete


@given(data=st.data())
def test_both_ways_of_unpacking_apply_alike(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 100))
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    masks = rng.integers(-(2**31), 2**31, (3, -(-vocab // 32))).astype(np.int32)
    allowed = unpack_on_host(masks, vocab)
    assert torch.equal(allowed, unpack_on(torch.device("cpu"), masks, vocab))
    logits = torch.from_numpy(rng.standard_normal((5, vocab)).astype(np.float32))
    rows = np.array([4, 0, 2], np.int32)
    masked = logits.clone()
    apply_masks(masked, rows, masks)
    for row in range(5):
        where = list(rows).index(row) if row in rows else None
        for token in range(vocab):
            open_to = where is None or bool(masks[where, token // 32] >> (token % 32) & 1)
            assert masked[row, token] == (logits[row, token] if open_to else OUT)
