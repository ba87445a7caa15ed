"""Batching modes, reports, gauges and the invariant that work never waits for nothing."""

from __future__ import annotations

import pytest

from tests.engine.toy import OracleDraft, Rig, expected


def test_static_batches_never_mix():
    """The next batch starts when the longest row of the last one has ended."""
    rig = Rig(batch=3, batching="static", chunk=4, budget=6)
    counts = [3, 9, 6, 5, 2]
    for i, count in enumerate(counts):
        rig.submit(str(i), [i] * 5, count)
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    most_held = 0
    while rig.engine.has_work:
        report = rig.step()
        most_held = max(most_held, len(rig.scheduler.running.held))
        for output in report.outputs:
            starts.setdefault(output.key, len(rig.reports))
            if output.finish:
                ends[output.key] = len(rig.reports)
    assert min(starts["3"], starts["4"]) > max(ends["0"], ends["1"], ends["2"])
    assert most_held == 2, "finished rows hold their slots"
    for i, count in enumerate(counts):
        assert rig.results[str(i), 0].ids == expected([i] * 5, 0, count)
    rig.assert_empty()


def test_continuous_batching_needs_fewer_steps_than_static():
    steps = {}
    for batching in ("continuous", "static"):
        rig = Rig(batch=4, batching=batching)
        for i in range(16):
            rig.submit(str(i), [i] * 5, 40 if i % 4 == 0 else 4)
        rig.run()
        steps[batching] = len(rig.reports)
    assert steps["static"] >= 1.5 * steps["continuous"]


def test_a_freed_slot_is_filled_at_the_next_step():
    rig = Rig(batch=2)
    rig.submit("a", [1, 2], 3)
    rig.submit("b", [3, 4], 10)
    rig.submit("c", [5, 6], 3)
    rig.run()
    running = [report.stats.running for report in rig.reports]
    assert rig.results["c", 0].first_scheduled == pytest.approx(0.004)
    assert running[:6] == [2, 2, 1, 2, 2, 1]


def test_paged_fits_more_sequences_than_contiguous():
    most = {}
    for kv in ("paged", "contiguous"):
        rig = Rig(kv=kv, blocks=24, batch=16)
        for i in range(16):
            prompt = [i, 20 + i, 40 + i, 60 + i]
            rig.submit(str(i), prompt, 20, eos_ids=(expected(prompt, 0, 6)[-1],))
        rig.run()
        most[kv] = max(report.stats.running for report in rig.reports)
        rig.assert_empty()
    assert most["contiguous"] == 4
    assert most["paged"] >= 8


def test_recompute_runs_whole_sequences_and_gives_blocks_back_each_step():
    rig = Rig(kv="recompute", blocks=8)
    rig.submit("r", [1, 2, 3, 4, 5], 6)
    rig.run()
    assert rig.results["r", 0].ids == expected([1, 2, 3, 4, 5], 0, 6)
    assert [report.stats.prefill_tokens for report in rig.reports] == [5, 6, 7, 8, 9, 10]
    assert all(report.stats.kv_free == 8 for report in rig.reports)


def test_verification_takes_fewer_steps_and_counts_add_up():
    rig = Rig(drafter=OracleDraft(wrong=0.2), max_draft=4)
    for i in range(3):
        rig.submit(str(i), [i, 50, 60], 24)
    rig.run()
    stats = [report.stats for report in rig.reports]
    assert len(stats) < 24
    assert sum(s.decode_tokens for s in stats) == 3 * 24
    assert sum(s.accepted for s in stats) == sum(r.accepted for r in rig.results.values()) > 0
    assert sum(s.drafted for s in stats) == sum(r.drafted for r in rig.results.values())
    assert sum(s.prefill_tokens for s in stats) == 9
    assert max(s.verifying for s in stats) == 3


def test_rejected_drafts_hold_no_blocks():
    rig = Rig(drafter=OracleDraft(wrong=1.0), max_draft=8, prefix_cache=False)
    rig.submit("r", [1, 2, 3], 40)
    while rig.engine.has_work:
        stats = rig.step().stats
        for seq in rig.scheduler.running.decoding:
            assert stats.kv_total - stats.kv_free == -(-seq.num_computed // 4)
    assert sum(report.stats.drafted for report in rig.reports) > 40
    assert rig.results["r", 0].accepted == 0


class RudeDraft(OracleDraft):
    """Proposes more than it was asked for."""

    def propose(self, sequences, k):
        return super().propose([sequence._replace(limit=k + 3) for sequence in sequences], k + 3)


@pytest.mark.parametrize("kv", ["paged", "contiguous"])
@pytest.mark.parametrize("drafter_class", [OracleDraft, RudeDraft])
def test_drafts_are_cut_to_max_verify_budget_and_remaining_tokens(drafter_class, kv):
    for options in ({"max_verify": 2}, {"budget": 5}, {"blocks": 12}, {"context": 23}):
        rig = Rig(kv=kv, drafter=drafter_class(wrong=0.3), max_draft=6, batch=2, **options)
        rig.submit("a", [1, 2, 3], 20)
        rig.submit("b", [4, 5], 20)
        rig.run()
        for key, prompt in (("a", [1, 2, 3]), ("b", [4, 5])):
            assert rig.results[key, 0].ids == expected(prompt, 0, 20)
        assert rig.executor.most_tokens <= options.get("budget", 14)
        rig.assert_empty()


def test_states_say_where_requests_stand_and_why_they_wait():
    rig = Rig(batch=2, blocks=14, chunk=4, budget=12)
    rig.submit("long", list(range(20)), 30)
    rig.submit("pair", [9] * 9, 4, n=2)
    report = rig.step()
    states = {state.key: state for state in report.states}
    assert (states["long"].state, states["long"].done, states["long"].total) == ("prefill", 4, 20)
    assert states["pair"].state == "prefill"
    rig.submit("slot", [3], 4)
    report = rig.step()
    assert [(s.key, s.state, s.reason) for s in report.states] == [("slot", "waiting", "slots")]
    rig.engine.abort("pair")
    rig.submit("big", [7] * 50, 4, priority=5)
    report = rig.step()
    reasons = {s.key: (s.state, s.reason) for s in report.states}
    assert reasons["big"] == ("waiting", "blocks")
    rig.clock.now += 2
    report = rig.step()
    assert {s.key for s in report.states} == set(rig.scheduler.requests)
    rig.run()
    rig.assert_empty()


def test_siblings_wait_for_their_leader():
    rig = Rig(chunk=4, budget=16)
    rig.submit("n", [9] * 12, 4, n=3)
    rig.submit("other", [3] * 2, 4)
    rig.step()
    assert len(rig.scheduler.admission) == 2
    assert {seq.wait_reason for seq in rig.scheduler.admission} == {"sibling"}
    assert ("other", 0) in rig.results
    rig.run()
    rig.assert_empty()


def test_choices_do_not_wait_without_a_prefix_cache():
    rig = Rig(prefix_cache=False)
    rig.submit("n", [9] * 12, 4, n=3)
    rig.step()
    assert len(rig.scheduler.running) == 3


def test_work_that_waits_for_nothing_raises():
    rig = Rig()
    rig.submit("r", [1, 2, 3], 4)
    rig.scheduler.running._free_slots.clear()
    with pytest.raises(RuntimeError, match="nothing to run"):
        rig.step()


def test_five_hundred_requests_leave_nothing():
    """4.14."""
    rig = Rig(batch=16, blocks=48, drafter=OracleDraft(), max_draft=2)
    rig.check_each_step = False
    for i in range(500):
        rig.submit(
            f"r{i}",
            [i % 90] * (1 + i % 7),
            1 + i % 5,
            client=f"c{i % 11}",
            n=1 + (i % 10 == 0),
            deadline=100.0 if i % 3 else None,
        )
        if i % 2:
            rig.step()
    rig.run()
    assert len(rig.results) == 550
    assert all(result.finish == "length" for result in rig.results.values())
    rig.assert_empty()


def test_stats_split_time_by_tokens():
    rig = Rig()
    rig.submit("a", [1] * 9, 3)
    first = rig.step().stats
    rig.submit("b", [2] * 9, 3)
    second = rig.step().stats
    assert (first.prefill_s, first.decode_s) == (0.001, 0.0)
    assert second.prefill_s == pytest.approx(0.0009)
    assert second.decode_s == pytest.approx(0.0001)
    assert second.kv_total == 64
    assert second.prefix_queries == 18
