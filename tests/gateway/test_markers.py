"""Special tokens that a parser needs are put back into the text."""

from __future__ import annotations

import pytest

from inferd_client import Piece
from inferd_gateway.markers import with_marker


@pytest.mark.parametrize(
    ("ids", "text", "expected"),
    [
        ((5,), "", "[T]"),
        ((1, 2), "ab", "ab"),
        ((5, 1), "[{", "[T][{"),
        ((1, 5), "a", "a[T]"),
        ((1, 5, 2, 3), "a[{", "a[T][{"),
        ((1, 5, 2), "ab", "ab[T]"),
    ],
)
def test_the_place_of_a_marker(ids, text, expected):
    assert with_marker(Piece(text, ids), 5, "[T]") == expected
    assert with_marker(Piece(text, ids), None, "[T]") == text
