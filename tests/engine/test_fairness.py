"""Turns: clients by tokens, priorities with ageing, skip-ahead; nobody starves."""

from __future__ import annotations

import random

import pytest

from inferd.engine.fairness import FairShares
from tests.engine.toy import Rig, expected


def quiet(**fields: object) -> Rig:
    rig = Rig(**fields)
    rig.check_each_step = False
    return rig


def order(rig: Rig) -> list[str]:
    """Requests in the order in which they first ran."""
    return [key for (key, _), _ in sorted(rig.results.items(), key=lambda item: item[1].first_scheduled)]


def test_a_thousand_requests_of_one_client_do_not_delay_another():
    rig = quiet(batch=4, budget=32, chunk=16)
    rig.submit("alone", [7] * 10, 5, client="b")
    rig.run()
    alone = len(rig.reports)
    for i in range(1000):
        rig.submit(f"a{i}", [i % 90] * 10, 5, client="a")
    for _ in range(60):
        rig.step()
    before = len(rig.reports)
    rig.submit("b", [7] * 10, 5, client="b")
    while rig.results.get(("b", 0)) is None:
        rig.step()
    assert len(rig.reports) - before <= 3 * alone
    rig.run()
    rig.assert_empty()


def test_clients_share_by_tokens_not_by_requests():
    """One client's prompts are five times as long: it gets a fifth of the requests."""
    long = started_of_long(prefix_cache=False)
    assert 6 <= long <= 10


def test_what_the_prefix_cache_holds_costs_a_client_nothing():
    long = started_of_long(prefix_cache=True)
    assert long > 15, "all prompts of a client are alike: two or four tokens each are left to compute"


def started_of_long(*, prefix_cache: bool) -> int:
    """Return how many of the first 48 requests are those of 50 tokens, beside others of 10."""
    rig = quiet(batch=1, chunk=16, budget=64, prefix_cache=prefix_cache)
    for i in range(60):
        rig.submit(f"long{i}", [1] * 50, 1, client="long")
        rig.submit(f"short{i}", [2] * 10, 1, client="short")
    rig.run()
    return sum(key.startswith("long") for key in order(rig)[:48])


def test_output_tokens_are_charged_too():
    """Equal prompts, but one client generates ten times as much."""
    rig = quiet(batch=1, chunk=16, budget=64)
    for i in range(40):
        rig.submit(f"talk{i}", [1] * 4, 36, client="talk")
        rig.submit(f"brief{i}", [2] * 4, 4, client="brief")
    rig.run()
    talk = sum(key.startswith("talk") for key in order(rig)[:30])
    assert 3 <= talk <= 9


def test_who_waits_for_nothing_saves_nothing_up_and_debts_are_caught_up():
    shares = FairShares()
    shares.charge("gone", 25)
    for _ in range(4):
        assert min(["here"], key=shares.served) == "here"
        shares.start("here")
        shares.charge("here", 10)
    assert min(["gone", "here"], key=shares.served) == "gone", "25 to 40"
    assert min(["here", "new"], key=shares.served) == "new"
    shares.start("new")
    assert shares.served("new") == 30, "not 0: where the last one chosen stood"
    assert len(shares) == 1, "who stands no higher than that is forgotten"


def test_a_long_prompt_of_a_newcomer_need_not_wait_for_as_many_tokens_of_others():
    rig = quiet(batch=2, budget=32, chunk=16, context=600, blocks=200)
    for i in range(60):
        rig.submit(f"chat{i:02}", [i] * 4, 6, client="chatty")
    for _ in range(20):
        rig.step()
    passed = len(rig.results)
    rig.submit("book", [7] * 500, 2, client="reader")
    rig.submit("next", [8] * 500, 2, client="reader")
    rig.run()
    started = {key: result.first_scheduled for (key, _), result in rig.results.items()}
    assert sum(at < started["book"] for at in started.values()) <= passed + 3, "only those that ran already"
    assert sum(started["book"] < at < started["next"] for at in started.values()) > 25, "but it owes them afterwards"


def test_clients_with_work_stay_within_one_request_of_each_other():
    rng = random.Random(5)
    shares = FairShares()
    served = dict.fromkeys("abcd", 0)
    for _ in range(2000):
        client, cost = min(served, key=shares.served), rng.randrange(1, 60)
        shares.start(client)
        shares.charge(client, cost)
        served[client] += cost
        assert max(served.values()) - min(served.values()) < 60


def waiting_steps(rig: Rig, key: str) -> int:
    before = len(rig.reports)
    while (key, 0) not in rig.results:
        rig.step()
    return len(rig.reports) - before


@pytest.mark.parametrize("depth", [1, 2])
def test_a_client_that_fills_all_slots_gives_one_up_to_another(depth):
    rig = quiet(batch=4, blocks=500, context=600, depth=depth)
    for i in range(8):
        rig.submit(f"long{i}", [i] * 5, 400, client="hog")
    for _ in range(20):
        rig.step()
    rig.submit("guest", [50] * 5, 3, client="guest")
    assert waiting_steps(rig, "guest") <= 1 + 2 * depth, "not 400"
    rig.run()
    assert [rig.results[f"long{i}", 0].preemptions for i in range(8)] == [0, 0, 0, 1, 0, 0, 0, 0], "the newest that ran"
    assert all(rig.results[f"long{i}", 0].ids == expected([i] * 5, 0, 400) for i in range(8))
    rig.assert_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_client_that_fills_the_pool_gives_blocks_up_to_another(depth):
    rig = quiet(batch=16, blocks=100, context=300, prefix_cache=False, depth=depth)
    for i in range(8):
        rig.submit(f"long{i}", [i] * 50, 40, client="hog")
    for _ in range(10):
        rig.step()
    before = rig.reports[-1].stats.preemptions
    rig.submit("guest", [50] * 100, 3, client="guest")
    assert waiting_steps(rig, "guest") <= 4 + 2 * depth
    assert rig.reports[-1].stats.preemptions - before in range(1, 4), "as many as it took"
    rig.run()
    assert all(rig.results[f"long{i}", 0].ids == expected([i] * 50, 0, 40) for i in range(8))
    rig.assert_empty()


def test_nobody_gives_way_to_who_wants_more_than_a_share_or_less_than_the_priority():
    rig = quiet(batch=4, blocks=100, context=400, prefix_cache=False)
    for i in range(4):
        rig.submit(f"long{i}", [i] * 50, 40, client="hog", priority=1)
    for _ in range(10):
        rig.step()
    rig.submit("guest", [50] * 5, 3, client="guest", priority=0)
    for _ in range(10):
        rig.step()
    rig.submit("greedy", [50] * 250, 3, client="guest", priority=1)
    rig.run()
    assert rig.reports[-1].stats.preemptions == 0
    rig.assert_empty()


def test_every_client_runs_something_and_few_are_preempted_for_it():
    rig = quiet(batch=8, blocks=400, context=600)
    for client in "abcd":
        for i in range(8):
            rig.submit(f"{client}{i}", [i] * 5, 60, client=client)
        for _ in range(3):
            rig.step()
        assert client in {seq.client for seq in rig.scheduler.running}
    rig.run()
    assert rig.reports[-1].stats.preemptions <= 10
    rig.assert_empty()


def test_prompts_of_two_clients_share_the_budget_whoever_came_first():
    rig = quiet(budget=32, chunk=32, batch=16, context=600, blocks=400, prefix_cache=False)
    for i in range(40):
        rig.submit(f"hog{i}", [i] * 500, 2, client="hog")
    for _ in range(40):
        rig.step()
    rig.submit("guest", [60] * 300, 2, client="guest")
    assert waiting_steps(rig, "guest") <= 3 * 300 / 32, "though others had begun before"
    rig.run()
    rig.assert_empty()


def test_prompts_of_one_length_are_read_one_after_the_other_and_a_shorter_one_beside_them():
    """To read two side by side would delay the first and not help the second."""
    rig = quiet(budget=32, chunk=32, batch=8, context=200, blocks=200, prefix_cache=False)
    rig.submit("first", [1] * 96, 2)
    rig.submit("second", [2] * 96, 2)
    assert waiting_steps(rig, "first") == 3
    rig.run()
    rig.submit("long", [3] * 150, 2)
    rig.step()
    rig.submit("short", [4] * 6, 2)
    assert waiting_steps(rig, "short") == 1
    assert ("long", 0) not in rig.results
    rig.run()
    rig.assert_empty()


def test_higher_priority_goes_first_and_low_priority_ages():
    rig = quiet(batch=1, ageing_s=0.05)
    rig.submit("runs", [1], 2)
    rig.step()
    rig.submit("low", [2] * 4, 2, priority=0, client="low")
    for i in range(200):
        rig.submit(f"high{i}", [3] * 4, 2, priority=3, client=f"h{i % 3}")
    rig.run()
    started = rig.results["low", 0].first_scheduled
    assert order(rig)[1].startswith("high")
    assert 0.15 <= started <= 0.25, "three levels of 50 ms each, and not last"
    rig.assert_empty()


def test_a_backlog_does_not_age_past_a_newcomer():
    rig = quiet(batch=1, ageing_s=0.01, chunk=8)
    for i in range(100):
        rig.submit(f"a{i}", [1] * 8, 2, client="a")
    for _ in range(50):
        rig.step()
    rig.submit("new", [2] * 8, 2, client="b")
    before = rig.clock.now
    rig.run()
    assert rig.results["new", 0].first_scheduled - before <= 0.008


def test_small_requests_pass_a_big_one_but_only_so_often():
    """Bounded skip-ahead: the big request starts although small ones never stop coming."""
    rig = Rig(blocks=12, batch=8, skip_ahead=4, prefix_cache=False)
    rig.submit("runs", [1] * 16, 17)
    rig.step()
    rig.submit("big", [2] * 30, 8)
    for i in range(20):
        rig.submit(f"s{i:02}", [3] * 3, 3)
    rig.run()
    started = order(rig)
    assert started[0] == "runs"
    assert started.index("big") == 5, "four small ones went ahead, then everybody waited for it"
    rig.assert_empty()


def test_skip_ahead_looks_only_so_far_behind():
    rig = Rig(blocks=12, skip_ahead=2, prefix_cache=False)
    rig.submit("runs", [1] * 16, 17)
    rig.step()
    for i in range(3):
        rig.submit(f"big{i}", [2] * 30, 8)
    rig.submit("small", [3] * 3, 3)
    rig.step()
    assert ("small", 0) not in rig.results
    rig.run()
    rig.assert_empty()


def test_admission_leaves_a_block_for_each_sequence_that_grows():
    rig = Rig(blocks=4, prefix_cache=False)
    rig.submit("grows", [1] * 3, 10)
    rig.step()
    rig.submit("fits", [2] * 12, 3)
    rig.run()
    assert rig.reports[-1].stats.preemptions == 0
    assert order(rig) == ["grows", "fits"]


def test_a_preempted_sequence_resumes_before_younger_requests():
    rig = Rig(blocks=7, batch=2, prefix_cache=False, skip_ahead=0)
    rig.submit("a", [1] * 6, 12)
    rig.submit("b", [2] * 6, 12)
    rig.submit("c", [3] * 2, 2)
    rig.run()
    assert rig.results["b", 0].preemptions == 1
    events = [(output.key, output.finish) for report in rig.reports for output in report.outputs]
    assert events.index(("c", None)) > events.index(("a", "length")), "c fitted, but it was not its turn"


def test_no_skipping_when_switched_off():
    rig = Rig(blocks=12, skip_ahead=0, prefix_cache=False)
    rig.submit("runs", [1] * 16, 17)
    rig.step()
    rig.submit("big", [2] * 30, 8)
    rig.submit("small", [3] * 3, 3)
    rig.run()
    assert order(rig) == ["runs", "big", "small"]


def test_steady_prefills_do_not_starve_decodes():
    """4.8: a new prompt arrives at each step; every decode still gets a token each step."""
    rig = quiet(batch=8, budget=16, chunk=16, blocks=200)
    rig.submit("d", [1, 2, 3], 60)
    rig.step()
    gaps, gap = [], 0
    for i in range(70):
        rig.submit(f"p{i}", [i] * 30, 1, client=f"c{i % 5}")
        report = rig.step()
        got = any(output.key == "d" for output in report.outputs)
        gaps.append(gap)
        gap = 0 if got else gap + 1
        if rig.results["d", 0].finish:
            break
    assert rig.results["d", 0].finish == "length"
    assert max(gaps) == 0
    rig.run()
    rig.assert_empty()


@pytest.mark.parametrize("budget", [2, 4, 7])
def test_decodes_do_not_starve_prefills_nor_each_other(budget):
    """More decodes than the budget: a prompt gets through, and decodes take turns."""
    rig = quiet(batch=10, budget=budget, chunk=4, blocks=200)
    for i in range(8):
        rig.submit(f"d{i}", [i], 40)
    for _ in range(12):
        rig.step()
    rig.submit("p", [50] * 12, 1)
    start = len(rig.reports)
    while ("p", 0) not in rig.results:
        rig.step()
    assert len(rig.reports) - start <= 14
    counts = [len(rig.results[f"d{i}", 0].ids) for i in range(8)]
    assert max(counts) - min(counts) <= 3
    rig.run()
    rig.assert_empty()


def test_a_long_prompt_leaves_room_for_a_short_one():
    rig = quiet(budget=32, chunk=32, context=600, blocks=200)
    rig.submit("long", [i % 90 for i in range(500)], 1, client="a")
    rig.step()
    rig.submit("short", [5] * 8, 1, client="b")
    rig.step()
    rig.step()
    assert ("short", 0) in rig.results
    assert ("long", 0) not in rig.results


@pytest.mark.parametrize("depth", [1, 2])
def test_the_oldest_of_the_highest_priority_is_never_preempted(depth):
    preempted = 0
    for blocks in range(8, 26):
        rig = Rig(blocks=blocks, batch=6, prefix_cache=False, depth=depth, budget=12)
        rig.submit("3", [3] * 5, 20, priority=1)
        for i in range(3):
            rig.submit(str(i), [i] * 5, 20)
            rig.step()
        rig.submit("4", [4] * 5, 20, priority=1)
        rig.run()
        assert rig.results["3", 0].preemptions == 0
        preempted += rig.reports[-1].stats.preemptions
        rig.assert_empty()
    assert preempted > 10
