"""4.3: abort and time-outs in every state, 200 times over, leave nothing behind; numeric errors too."""

from __future__ import annotations

import itertools

import pytest

from tests.engine.toy import OracleDraft, Rig, expected

LONG = list(range(1, 21))


def busy(depth: int = 1, **fields: object) -> Rig:
    """Five requests over few slots and blocks: every state occurs within the first steps.

    With a draft model no step is planned before the last one is known.
    """
    drafter = OracleDraft() if depth == 1 else None
    rig = Rig(batch=3, blocks=12, chunk=5, budget=16, depth=depth, drafter=drafter, max_draft=3, skip_ahead=2, **fields)
    rig.submit("old", [1, 2, 3], 20)
    rig.submit("chunks", LONG, 8)
    rig.submit("pair", [4, 4, 4, 4, 4, 9], 10, n=2, seed=3)
    rig.submit("queued", LONG[::-1], 6, client="d")
    rig.submit("last", [8, 8], 9, client="d", priority=-1)
    return rig


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("depth", [1, 2])
def test_abort_after_any_step_in_any_state(depth, batching):
    states: set[tuple[str, bool, bool]] = set()
    keys = ["old", "chunks", "pair", "queued", "last"]
    for count, (steps, key) in enumerate(itertools.product(range(22), keys)):
        rig = busy(depth, batching=batching)
        for _ in range(steps):
            rig.step()
        seqs = rig.scheduler.requests.get(key, [])
        states |= {(s.phase.value, s.num_inflight > 0, s.preemptions > 0) for s in seqs}
        choice = count % 2 if key == "pair" and count % 3 else None
        heard = {at: len(r.ids) for at, r in rig.results.items()}
        rig.engine.abort(key, choice)
        rig.engine.abort(key, choice)
        rig.run()
        rig.assert_empty()
        for (other, which), result in rig.results.items():
            if other == key and choice in (None, which):
                assert len(result.ids) == heard.get((other, which), 0), "nothing is said after an abort"
            else:
                assert result.finish == "length"
        if key != "pair":
            assert rig.results["pair", 1].ids == expected([4, 4, 4, 4, 4, 9], 3 + 1, 10)
    assert {phase for phase, _, _ in states} == {"waiting", "prefill", "decode"}
    assert batching == "static" or any(preempted for _, _, preempted in states)
    assert any(flying for _, flying, _ in states) == (depth == 2)


@pytest.mark.parametrize(("depth", "most"), [(1, 24), (2, 44)])
def test_deadlines_in_every_state(depth, most):
    states: set[str] = set()
    for steps in range(1, most, 2):
        rig = busy(depth)
        rig.submit("late", LONG, 28, deadline=0.001 * steps + 0.0005, client="e")
        for _ in range(steps):
            rig.step()
        states |= {s.phase.value for s in rig.scheduler.requests.get("late", ())}
        rig.run()
        assert rig.errors["late"].code == "deadline_exceeded"
        assert rig.errors["late"].limit == pytest.approx(0.001 * steps + 0.0005)
        assert set(rig.errors) == {"late"}
        rig.assert_empty()
    assert states == {"waiting", "prefill", "decode"}


def test_queue_timeout_only_counts_before_the_first_slot():
    rig = Rig(batch=1)
    rig.submit("runs", [1, 2, 3], 30, queue_deadline=0.010)
    rig.submit("waits", [1, 2, 3], 5, queue_deadline=0.010)
    rig.submit("patient", [1, 2, 3], 5)
    rig.run()
    assert list(rig.errors) == ["waits"]
    assert rig.errors["waits"].code == "deadline_exceeded"
    assert "queue" in rig.errors["waits"].message
    assert rig.results["runs", 0].finish == rig.results["patient", 0].finish == "length"
    rig.assert_empty()


def test_two_limits_that_pass_at_once_give_one_error():
    rig = Rig(batch=1)
    rig.submit("runs", [1, 2, 3], 30)
    rig.submit("both", [1, 2, 3], 5, queue_deadline=0.005, deadline=0.006)
    for _ in range(3):
        rig.step()
    rig.clock.now += 1
    rig.run()
    assert list(rig.errors) == ["both"]
    rig.assert_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_bad_numerics_end_one_request_and_poison_no_cache(depth):
    """2.13: blocks of a failed request are not reused; the same prompt later is right."""
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    rig = Rig(depth=depth)
    rig.executor.broken.add((0, 12))
    rig.submit("bad", prompt, 10)
    rig.submit("good", prompt[::-1], 10, seed=1)
    rig.run()
    assert rig.errors["bad"].code == "numeric_error"
    assert rig.results["bad", 0].finish is None
    assert len(rig.results["bad", 0].ids) == 3
    assert rig.results["good", 0].ids == expected(prompt[::-1], 1, 10)
    rig.executor.broken.clear()
    rig.submit("retry", prompt, 10)
    rig.run()
    assert rig.results["retry", 0].cached == 0
    assert rig.results["retry", 0].ids == expected(prompt, 0, 10)
    rig.assert_empty()


def test_bad_numerics_of_one_choice_end_the_request():
    rig = Rig()
    rig.executor.broken.add((6, 10))
    rig.submit("n", [5, 6, 7, 8, 9], 10, n=3, seed=5)
    rig.run()
    assert rig.errors["n"].code == "numeric_error"
    assert all(result.finish is None for result in rig.results.values())
    rig.assert_empty()


def test_a_raising_drafter_is_switched_off_and_named():
    class Broken(OracleDraft):
        def propose(self, sequences, k):
            raise KeyError("lost")

    class Foreign(OracleDraft):
        def propose(self, sequences, k):
            return [[10**6] for _ in sequences]

    class Short(OracleDraft):
        def propose(self, sequences, k):
            return []

    class Deaf(OracleDraft):
        def observe(self, outcomes):
            raise RuntimeError("no ears")

    for drafter in (Broken(), Foreign(), Short(), Deaf()):
        rig = Rig(drafter=drafter, max_draft=2)
        rig.submit("r", [1, 2, 3], 10)
        rig.run()
        assert rig.results["r", 0].ids == expected([1, 2, 3], 0, 10)
        assert len(rig.warnings) == 1
        assert type(drafter).__name__ in rig.warnings[0]
        rig.assert_empty()


def test_a_device_that_a_drafter_lost_ends_the_engine():
    class Lost(OracleDraft):
        def __init__(self, text):
            super().__init__()
            self.text = text

        def propose(self, sequences, k):
            raise RuntimeError(self.text)

    for text in ("CUDA error: an illegal memory access was encountered", "Triton Error [CUDA]: device kernel failed"):
        rig = Rig(drafter=Lost(text), max_draft=2)
        rig.submit("r", [1, 2, 3], 10)
        with pytest.raises(RuntimeError, match="CUDA"):
            rig.run()


def test_the_drafter_hears_outcomes_and_ends():
    drafter = OracleDraft(wrong=0.5)
    rig = Rig(drafter=drafter, max_draft=3, blocks=8)
    rig.submit("a", [1, 2, 3], 20)
    rig.submit("b", [4, 5, 6], 20)
    rig.run()
    assert sum(o.drafted for o in drafter.observed) == sum(r.drafted for r in rig.results.values())
    assert sum(o.accepted for o in drafter.observed) >= sum(r.accepted for r in rig.results.values()) > 0
    assert set(drafter.dropped) == {0, 1}
    assert len(drafter.dropped) == 2 + rig.reports[-1].stats.preemptions
