"""Several steps in one call: the same tokens as one at a time, for a bounded time, and only while nobody waits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inferd.engine.demand import Demand, Scan
from tests.engine.toy import Rig, expected

STEP_S = 0.001
"""Of the toy executor."""


def make(limit: int = 8, most: int = 8, **options: Any) -> Rig:
    """Return an engine whose calls take the time of `limit` steps, and at most `most`."""
    return Rig(most_steps=most, multi_step_s=(limit + 0.5) * STEP_S, **options)


def tokens_a_report(rig: Rig) -> list[list[int]]:
    return [[len(output.ids) for output in report.outputs] for report in rig.reports]


@pytest.mark.parametrize("seed", range(12))
def test_every_request_gets_the_tokens_of_plain_decoding(seed: int) -> None:
    rng = random.Random(seed)
    windows = rng.choice([(None,), (None, 12)])
    rig = make(rng.randint(2, 9), blocks=rng.choice([14, 64]), batch=rng.choice([2, 5]), context=56, windows=windows)
    rig.executor.steps_done = lambda wanted: rng.randint(1, wanted)  # messages that come meanwhile
    wanted: dict[str, tuple[list[int], int, int]] = {}
    for index in range(14):
        prompt, count = [rng.randrange(90) for _ in range(rng.randint(1, 20))], rng.randint(1, 30)
        wanted[f"{index}"] = prompt, count, index
        rig.submit(f"{index}", prompt, count, seed=index, stop_token_ids=(7, 11), logprobs=rng.choice([None] * 5 + [1]))
        for _ in range(rng.randint(0, 4)):
            rig.step()
    rig.run()
    for key, (prompt, count, index) in wanted.items():
        tokens = expected(prompt, index, count)
        end = next((at + 1 for at, token in enumerate(tokens) if token in (7, 11)), count)
        assert rig.results[key, 0].ids == tokens[:end]
        assert rig.results[key, 0].finish == ("length" if end == count and tokens[-1] not in (7, 11) else "stop")
    rig.assert_empty()
    assert max(max(counts, default=0) for counts in tokens_a_report(rig)) > 1


def test_a_call_takes_as_many_steps_as_its_time_and_the_executor_allow() -> None:
    for limit, most, want in ((4, 16, 4), (9, 6, 6), (1, 16, 1), (0, 16, 1), (8, 1, 1)):
        rig = make(limit, most)
        rig.submit("a", [1, 2, 3], 40)
        rig.run()
        assert tokens_a_report(rig)[3] == [want], (limit, most)
        assert rig.results["a", 0].ids == expected([1, 2, 3], 0, 40)


def test_nobody_is_computed_past_a_length_that_is_known() -> None:
    rig = make(8)
    rig.submit("a", [1, 2, 3], 13)
    rig.submit("b", [4, 5], 30)
    rig.run()
    together = [counts for counts in tokens_a_report(rig) if len(counts) == 2]
    assert together == [[1, 1], [1, 1], [8, 8], [3, 3]]


def test_who_waits_is_looked_after_at_every_step() -> None:
    rig = make(8, batch=1)
    rig.submit("a", [1, 2, 3], 30)
    rig.submit("b", [4, 5], 30, client="d")
    rig.run()
    counts = tokens_a_report(rig)
    assert all(took == [1] for took in counts[:30]), "while b waits for the slot"
    assert [8] in counts[30:]


@pytest.mark.parametrize("asks", [{"logprobs": 1}, {"presence_penalty": 1.0}, {"min_tokens": 3}])
def test_who_needs_the_host_gets_a_step_a_call(asks: dict[str, Any]) -> None:
    rig = make(8)
    rig.submit("a", [1, 2, 3], 20)
    rig.submit("b", [1, 2, 3], 20, **asks)
    rig.run()
    assert max(max(counts, default=0) for counts in tokens_a_report(rig)) == 1


def test_a_pool_without_room_gives_a_step_a_call_and_takes_nobody_s_blocks() -> None:
    rig = make(8, blocks=7, batch=2)
    rig.submit("a", [1] * 9, 14)
    rig.submit("b", [2] * 9, 3)
    rig.run()
    assert rig.scheduler.journal.num_preemptions == 0
    assert rig.results["a", 0].ids == expected([1] * 9, 0, 14)
    rig.assert_empty()


def test_a_token_that_cannot_be_chosen_ends_its_request_alone() -> None:
    rig = make(8)
    rig.executor.broken.add((3, 9))  # what follows nine tokens of seed 3
    rig.submit("a", [1, 2, 3], 20, seed=3)
    rig.submit("b", [4, 5], 20)
    rig.run()
    assert rig.results["a", 0].ids == expected([1, 2, 3], 3, 6)
    assert rig.errors["a"].code == "numeric_error"
    assert rig.results["b", 0].ids == expected([4, 5], 0, 20)
    rig.assert_empty()


def test_what_several_steps_take_is_what_they_would_take_alone() -> None:
    """Time, bytes and tokens, and a step's cost as the scheduler learns it."""
    told: list[tuple[float, ...]] = []
    for limit in (0, 8):
        rig = make(limit)
        rig.engine._demand = Demand(weight_bytes=100, kv_bytes=(Scan(2.0), Scan(3.0, 10)))
        rig.submit("a", [1, 2, 3], 30)
        rig.submit("b", [1, 2], 12)
        rig.run()
        stats = [report.stats for report in rig.reports]
        charged = sum(sum(report.charges.decode.values()) for report in rig.reports)
        assert rig.scheduler.pace.decode_s(2) == pytest.approx(STEP_S)
        told.append(
            (
                charged,
                sum(s.decode_s for s in stats),
                sum(s.weight_bytes for s in stats),
                sum(s.kv_bytes for s in stats),
                sum(s.decode_tokens for s in stats),
            )
        )
    assert told[0] == pytest.approx(told[1])
    assert len(told) == 2
