"""What a grammar may cost. The same bounds hold where it is tried and where it is used."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_ERROR_CHARS = 400
_NOTES = {
    "Unimplemented keys: ": "not supported of JSON Schema: ",
    "NoExtensionBias": "no output can be complete",
    "NoExtension": "no output can be complete",
    "oneOf constraints are not supported.": "branches of oneOf that may both hold cannot be told apart; use anyOf",
}
"""What the library says only to those who know it."""


def parser_limits() -> LLParserLimits:
    """Return bounds of the parser and lexer.

    They allow schemas of a thousand properties and enumerations of twenty thousand entries. A lexer state was measured
    to take a hundred bytes, so a sequence has at most ten megabytes of them; a mask that used all of its fuel would
    take about 15 ms.
    """
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=100_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def readable(error: str) -> str:
    """Return an error of the library as one short line."""
    for start, note in _NOTES.items():
        if error.startswith(start):
            error = note + error.removeprefix(start) if note.endswith(" ") else note
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["it cannot be used"]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return reason if len(reason) <= MAX_ERROR_CHARS else f"{reason[:MAX_ERROR_CHARS]}..."
