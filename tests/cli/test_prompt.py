"""Reading of messages: one line, continued lines, blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferd.cli.prompt import Reader


def typed(*given: str) -> Callable[[str], str]:
    rest = list(given)

    def ask(_prompt: str) -> str:
        if not rest:
            raise EOFError
        return rest.pop(0)

    return ask


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["one line"], "one line"),
        (["first\\", "second\\", "third"], "first\nsecond\nthird"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""one"""'], "one"),
        (['"""', "cut off"], "cut off"),
        (["/help"], "/help"),
        ([], None),
        (["a\\"], None),
    ],
)
def test_messages(given: list[str], wanted: str | None) -> None:
    assert Reader(typed(*given)).read() == wanted


def test_an_interrupt_gets_out() -> None:
    def ask(_prompt: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reader(ask).read()
