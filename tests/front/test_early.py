"""Cancels that come before their request, on a fake clock."""

from __future__ import annotations

from inferd.front.early import MAX_WAITING, WINDOW_S, EarlyCancels


def test_a_cancel_waits_for_a_while_and_serves_once() -> None:
    early = EarlyCancels()
    early.note("a", 10.0)
    assert not early.take("b", 10.0)
    assert early.take("a", 10.0 + WINDOW_S)
    assert not early.take("a", 10.0 + WINDOW_S)
    early.note("a", 10.0)
    assert not early.take("a", 10.1 + WINDOW_S)


def test_a_cancel_of_what_has_ended_is_late() -> None:
    early = EarlyCancels()
    early.ended("a")
    early.note("a", 1.0)
    assert not early.take("a", 1.0)


def test_few_are_kept() -> None:
    early = EarlyCancels()
    for number in range(MAX_WAITING + 10):
        early.note(str(number), 1.0)
    assert [early.take(str(number), 1.0) for number in (0, 9, 10, MAX_WAITING + 9)] == [False, False, True, True]
