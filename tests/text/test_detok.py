"""Text from token ids: H3 (any chunking gives the one-shot text), stop strings, split characters."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inferd.front.detok import TextStream
from inferd.load.vocab_hf import hf_vocabulary
from tests.tiny_tokenizer import SPECIALS, write_tokenizer

BYTES = [bytes([b]) for b in range(256)] + [b"", "né".encode(), "😀 ".encode(), "👨‍👩‍👧".encode(), b"BC", b"stop"]
SPECIAL = 256


def reference(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """Cut one-shot text where the first stop string is complete; the longest of several that end there."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not ends:
        return text, None
    end, length, stop = min(ends)
    return text[: end if include else end + length], stop


def stream(pieces, ids, cuts, stops=(), include=False, special=frozenset({SPECIAL})):
    """Push ids in groups; return the deltas, the stop and how many ids were used."""
    out = TextStream(pieces, special, stops, include)
    deltas, used, position, stop = [], 0, 0, None
    for size in itertools.chain(cuts, itertools.repeat(1)):
        if position >= len(ids) or stop is not None:
            break
        delta = out.push(ids[position : position + size])
        position += size
        deltas.append(delta.text)
        used += delta.num_ids_used
        stop = delta.stop
    deltas.append(out.finish())
    return deltas, stop or out.stop, used


def decode(pieces, ids) -> str:
    return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")


tokens = st.lists(
    st.integers(0, len(BYTES) - 1) | st.sampled_from([65, 66, 67, 0xC3, 0xA9, 0xF0, 0x9F, 256]), max_size=40
)
cuts = st.lists(st.integers(1, 7), max_size=40)
stops = st.lists(st.text("ABCopt é😀\ufffd", min_size=1, max_size=4), max_size=4).map(tuple)


@given(tokens, cuts)
@settings(max_examples=300, deadline=None)
def test_any_chunking_gives_the_one_shot_text(ids, cuts):
    deltas, stop, used = stream(BYTES, ids, cuts)
    assert "".join(deltas) == decode(BYTES, ids)
    assert stop is None
    assert used == len(ids)


@given(tokens, cuts, stops, st.booleans())
@settings(max_examples=500, deadline=None)
def test_stop_strings_cut_the_one_shot_text(ids, cuts, stops, include):
    deltas, stop, used = stream(BYTES, ids, cuts, stops, include)
    text, expected = reference(decode(BYTES, ids), stops, include)
    assert ("".join(deltas), stop) == (text, expected)
    if stop is None:
        assert used == len(ids)


@given(st.text("AB", max_size=20), cuts, st.lists(st.text("AB", min_size=1, max_size=3), max_size=3), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_a_stop_complete_within_the_first_ids_does_not_count(text, cuts, stops, least):
    """One id a character: the earliest end past `least` wins, though its head may lie before."""
    out = TextStream(BYTES, (), stops, min_ids=least)
    ids, got = list(text.encode()), ""
    for size in (*cuts, len(ids)):
        got += out.push(ids[:size]).text
        del ids[:size]
    got += out.finish()
    ends = [(end, -len(s), s) for s in stops for end in range(least + 1, len(text) + 1) if text[:end].endswith(s)]
    end, length, stop = min(ends, default=(len(text), 0, None))
    assert (got, out.stop) == (text[: end + length], stop)


def test_a_flush_within_the_first_ids_completes_no_stop():
    for least, stop in ((1, "\ufffd"), (2, None)):
        out = TextStream(BYTES, (), ("\ufffd",), min_ids=least)
        assert out.push([97, 0xF0]).text == "a"
        assert (out.finish(), out.stop) == ("" if stop else "\ufffd", stop)


@given(tokens, stops)
@settings(max_examples=200, deadline=None)
def test_the_ids_used_are_the_fewest_that_hold_the_stop(ids, stops):
    _, stop, used = stream(BYTES, ids, [len(ids)], stops)
    if stop is not None and "\ufffd" not in stop:
        assert stop in decode(BYTES, ids[:used])
        assert stop not in decode(BYTES, ids[: used - 1])


@given(tokens, stops)
@settings(max_examples=200, deadline=None)
def test_no_more_is_held_than_a_stop_may_need(ids, stops):
    out = TextStream(BYTES, {SPECIAL}, stops)
    sent = ""
    for count, token in enumerate(ids, 1):
        delta = out.push([token])
        sent += delta.text
        if delta.stop:
            return
        whole = b"".join(BYTES[i] for i in ids[:count])
        known = whole.decode("utf-8", "ignore") if not _clean(whole) else whole.decode()
        longest = max((n for s in stops for n in range(len(s)) if known.endswith(s[:n])), default=0)
        if _clean(whole):
            assert sent == known[: len(known) - longest]


def _clean(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("split", list(itertools.product([1, 2, 3], repeat=3)))
def test_a_stop_over_several_tokens_never_leaks_its_head(split, include):
    pieces = [b"AB", b"CD", b"EF!"]
    deltas, stop, used = stream(pieces, [0, 1, 2], split, ("BCDE",), include, frozenset())
    assert stop == "BCDE"
    assert "".join(deltas) == ("ABCDE" if include else "A")
    assert used == 3
    assert not any("B" in d and "ABCDE" not in "".join(deltas) for d in deltas)


def test_text_held_as_a_possible_stop_comes_out_at_the_end():
    pieces = [b"ple", b"as", b""]
    deltas, stop, used = stream(pieces, [0, 1, 2], [], ("assistant",), special=frozenset({2}))
    assert (deltas, stop, used) == (["ple", "", "", "as"], None, 3)


def test_ids_after_the_stop_are_not_used():
    out = TextStream([b"a", b"b", b"c"], (), ("b",))
    assert out.push([0, 1, 2, 2]) == ("a", "b", 2)
    assert out.push([0]) == ("", "b", 0)
    assert out.finish() == ""


def test_of_stops_that_end_together_the_longest_wins():
    assert TextStream([b"xABC"], (), ("C", "ABC", "BC")).push([0]) == ("x", "ABC", 1)


def test_the_stop_that_ends_first_wins():
    assert TextStream([b"ABCDE"], (), ("ABCDE", "BC")).push([0]) == ("A", "BC", 1)


def test_a_repeating_head_is_not_missed():
    assert TextStream([b"aaab"], (), ("aab",)).push([0]) == ("a", "aab", 1)


@pytest.mark.parametrize("char", ["é", "€", "😀", "👨‍👩‍👧‍👦", "각", "e\u0301"])
def test_characters_come_whole_and_at_once(char):
    out = TextStream(BYTES, ())
    data = char.encode()
    deltas = [out.push([b]).text for b in data]
    assert "".join(deltas) == char
    assert all("\ufffd" not in d for d in deltas)
    assert [d for d in deltas if d] == list(char)


def test_a_character_cut_off_at_the_end_is_flushed_once():
    out = TextStream(BYTES, ())
    assert out.push(list("😀".encode()[:3])).text == ""
    assert out.finish() == "\ufffd"
    assert out.finish() == ""


def test_invalid_bytes_do_not_wait():
    out = TextStream(BYTES, ())
    assert out.push([0xFF]).text == "\ufffd"
    assert out.push([0xC3]).text == ""
    assert out.push([65]).text == "\ufffdA"


def test_a_stop_completed_by_the_flush_is_found():
    out = TextStream(BYTES, (), ("a\ufffd",))
    assert out.push([97, 0xF0]).text == ""
    assert out.finish() == ""
    assert out.stop == "a\ufffd"


def test_special_and_unknown_ids_have_no_text_and_split_no_character():
    out = TextStream(BYTES, {65, SPECIAL})
    assert out.push([0xC3, SPECIAL, 65, 10_000, -1, 0xA9]).text == "é"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 290)
    return hf_vocabulary(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


@given(ids=st.lists(st.integers(0, 289), max_size=60), cuts=cuts)
@settings(max_examples=200, deadline=None)
def test_streams_agree_with_the_tokenizers_library(tiny, ids, cuts):
    vocabulary, tokenizer = tiny
    deltas, _, _ = stream(vocabulary.pieces, ids, cuts, special=vocabulary.special_ids)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=60), cuts=cuts)
@settings(max_examples=200, deadline=None)
def test_text_survives_the_round_trip(tiny, text, cuts):
    vocabulary, _ = tiny
    ids = vocabulary.encode(text)
    deltas, _, _ = stream(vocabulary.pieces, ids, cuts, special=vocabulary.special_ids)
    assert "".join(deltas) == text


def test_a_special_token_first_leaves_no_space(tiny):
    vocabulary, _ = tiny
    ids = vocabulary.encode(f"{SPECIALS[2]} the", special_tokens=True)
    deltas, _, _ = stream(vocabulary.pieces, ids, [], special=vocabulary.special_ids)
    assert "".join(deltas) == " the"


def test_work_per_token_stays_bounded():
    """A text that always looks like the head of a stop is scanned once, not again at each token."""
    stop = "a" * 255 + "b"
    out = TextStream([b"a"], (), (stop,))
    steps = [len(out.push([0]).text) for _ in range(2000)]
    assert sum(steps) == 2000 - 255
    assert len(out._held) == 255
