"""Keep control characters of models, templates and names away from the terminal (CWE-150)."""

from __future__ import annotations

_PICTURES = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A, 0x0D)}
"""C0 as Unicode control pictures, so that nothing vanishes; carriage returns alone are dropped."""
_C1 = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_BIDI = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
"""Overrides and isolates, which can make a line read as something else."""
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)
_TABLE: dict[int, int | None] = {**_PICTURES, 0x0D: None, 0x7F: 0x2421, **_C1, **_BIDI, **_SURROGATES}
_LINE: dict[int, int | None] = {**_TABLE, 0x09: 0x20, 0x0A: 0x20, 0x2028: 0x20, 0x2029: 0x20}
_JSON = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), *_BIDI)}


def clean(text: str) -> str:
    """Return `text` with every control character but newline and tab made harmless."""
    return text.translate(_TABLE)


def clean_line(text: str) -> str:
    """Like `clean`, for text that must stay on one line."""
    return text.translate(_LINE)


def clean_json(text: str) -> str:
    """Escape what JSON allows raw but a terminal may act on; the value stays the same."""
    return text.translate(_JSON)
