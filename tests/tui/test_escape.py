"""No control character reaches a terminal, and nothing harmless is lost."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from inferd_tui.escape import clean, clean_json, clean_line
from inferd_tui.units import table

DANGEROUS = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {0x09, 0x0A}


@given(st.text(st.characters(codec=None), max_size=60))
def test_no_dangerous_character_is_left(text: str) -> None:
    out = clean(text)
    assert not {ord(c) for c in out} & DANGEROUS
    assert not any(unicodedata.category(c) in {"Cc", "Cs"} for c in clean_line(out))
    out.encode()


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs"]), max_size=60))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert clean(text) == text


def test_an_escape_sequence_becomes_visible_text() -> None:
    assert clean("\x1b[2Jred\x9b31m\r\n\ttab") == "␛[2Jred�31m\n\ttab"


def test_a_line_stays_one_line() -> None:
    assert clean_line("a\nb\tc\u2028d\r") == "a b c d"


def test_every_split_of_a_text_is_as_clean_as_the_whole() -> None:
    text = "a\x1b]8;;http://x\x07link\x9c\r\nb"
    for cut in range(len(text) + 1):
        assert clean(text[:cut]) + clean(text[cut:]) == clean(text)


@given(st.text(max_size=40))
def test_json_keeps_its_value_and_holds_nothing_raw(text: str) -> None:
    encoded = clean_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(encoded) == text
    assert not {ord(c) for c in encoded} & DANGEROUS


def test_cells_of_a_table_cannot_break_it() -> None:
    lines = table(("NAME", "X"), [("evil\nname\x1b[0m", "1"), ("b", "22")])
    assert lines == ["NAME           X", "evil name␛[0m  1", "b              22"]
