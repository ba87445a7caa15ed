"""Whose prompt is read next: short ones early, long ones for certain, clients in fair shares."""

from __future__ import annotations

import pytest

from inferd.engine.request import Sequence
from tests.engine.toy import Rig, expected

BUDGET = 32


def reading(**fields: object) -> Rig:
    rig = Rig(
        **{"budget": BUDGET, "chunk": BUDGET, "batch": 24, "context": 700, "blocks": 900, "prefix_cache": False}
        | fields
    )
    rig.check_each_step = False
    return rig


def steps_until(rig: Rig, key: str) -> int:
    before = len(rig.reports)
    while (key, 0) not in rig.results:
        rig.step()
    return len(rig.reports) - before


def prompt(start: int, length: int) -> list[int]:
    return [(start + i) % 90 for i in range(length)]


@pytest.mark.parametrize("clients", [("a", "a", "a"), ("a", "b", "c")], ids=["of one client", "of three"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_short_prompt_passes_all_long_ones_that_are_being_read(clients: tuple[str, str, str], depth: int) -> None:
    rig = reading(depth=depth)
    for i, client in enumerate(clients[:2]):
        rig.submit(f"long{i}", prompt(i, 600), 2, client=client)
        rig.step()
    rig.submit("short", prompt(7, 20), 2, client=clients[2])
    assert steps_until(rig, "short") <= 1 + depth
    rig.run()
    assert all(rig.results[f"long{i}", 0].ids == expected(prompt(i, 600), 0, 2) for i in range(2))
    rig.assert_empty()


def test_short_prompts_pass_waiting_long_ones_as_often_as_they_may() -> None:
    rig = reading(batch=1, skip_ahead=3)
    rig.submit("runs", prompt(0, 10), 3)
    rig.step()
    rig.submit("long", prompt(1, 300), 2)
    for i in range(6):
        rig.submit(f"s{i}", prompt(2 + i, 10), 2)
    rig.run()
    started = sorted(rig.results, key=lambda key: rig.results[key].first_scheduled)
    assert [key for key, _ in started] == ["runs", "s0", "s1", "s2", "long", "s3", "s4", "s5"]


@pytest.mark.parametrize("one_client", [True, False])
def test_short_prompts_that_never_stop_coming_leave_a_long_one_a_quarter(one_client: bool) -> None:
    rig = reading()
    rig.submit("long", prompt(0, 10 * BUDGET), 1, client="c0")
    rig.step()
    for count in range(200):
        rig.submit(f"s{count}", prompt(count, BUDGET), 1, client="c0" if one_client else f"c{count % 3}")
        rig.step()
        if ("long", 0) in rig.results:
            break
    assert 30 <= count <= 40, "nine chunks, three short prompts before each; the last ones are short themselves"
    rig.run()
    rig.assert_empty()


def test_equal_prompts_are_read_one_after_the_other() -> None:
    rig = reading()
    for i in range(3):
        rig.submit(f"p{i}", prompt(i, 4 * BUDGET), 1)
    assert [steps_until(rig, f"p{i}") for i in range(3)] == [4, 4, 4]


def test_short_prompts_of_who_had_more_do_not_pass_a_long_one() -> None:
    rig = reading(batch=4)
    for i in range(60):
        rig.submit(f"hog{i}", prompt(i, 8), 20, client="hog")
    for _ in range(60):
        rig.step()
    rig.submit("guest", prompt(3, 200), 2, client="guest")
    assert steps_until(rig, "guest") <= 200 / (BUDGET - 4) + 3
    rig.run()
    rig.assert_empty()


def test_a_step_looks_at_few_of_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the prompt whose turn it is fills the step, and where nothing of a client may enter."""
    looks = 0
    left = Sequence.num_uncomputed

    def counted(seq: Sequence) -> int:
        nonlocal looks
        looks += 1
        return left.fget(seq)

    rig = reading(batch=2)
    rig.submit("long", prompt(0, 600), 2, client="a")
    rig.step()
    for i in range(3000):
        rig.submit(f"w{i}", prompt(i, 60), 2, client="ab"[i % 2])
    monkeypatch.setattr(Sequence, "num_uncomputed", property(counted))
    for _ in range(30):
        rig.step()
    assert 0 < looks < 30 * 150
