"""Special tokens have no text, yet a parser may need one: put its spelling back where its id came."""

from __future__ import annotations

from inferd_client import Piece


def with_marker(piece: Piece, token: int | None, marker: str) -> str:
    """Return the text of a piece with `marker` for each `token` in it.

    A piece is one token unless the reader is slow. In a longer one the place is a guess: before the text when the
    marker leads, at its end when nothing follows, and before the first bracket else.
    """
    if token is None or token not in piece.ids:
        return piece.text
    if piece.ids[0] == token:
        return marker + piece.text
    if piece.ids[-1] == token:
        return piece.text + marker
    bracket = piece.text.find("[")
    at = bracket if bracket >= 0 else len(piece.text)
    return piece.text[:at] + marker + piece.text[at:]
