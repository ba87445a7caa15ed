"""H1 and H2 on the toy model: whatever the mix of levers, the tokens are those of plain decoding."""

from __future__ import annotations

import itertools
import random

import pytest

from inferd.engine.sizing import choose_depth
from inferd_plugins.draft.ngram import NgramDraft
from tests.engine.toy import OracleDraft, Rig, expected

LENGTHS = (1, 3, 4, 5, 8, 17)
NEW_TOKENS = 12
BLOCK = 4
LONGEST = -(-(max(LENGTHS) + NEW_TOKENS - 1) // BLOCK)
GRID = list(
    itertools.product(
        ("paged", "contiguous", "recompute"),
        (False, True),  # prefix cache
        (1, 3, 4, 64),  # chunk
        (LONGEST, LONGEST + 3, 64),  # blocks
        (1, 2, 6),  # batch
        ("none", "ngram", "oracle1", "oracle3", "oracle5"),
        ("continuous", "static"),
        ("off", "on"),  # overlap
        (4, 9, 64),  # token budget
    )
)


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(90) for _ in range(12)]
    made = [[rng.randrange(90) for _ in range(length)] for length in LENGTHS]
    made[-1][:12] = shared
    return [*made, [*shared, 5]]


def run_case(case: tuple) -> Rig:
    kv, cache, chunk, blocks, batch, draft, batching, overlap, budget = case
    depth, _ = choose_depth(overlap, drafting=draft != "none", retains=kv != "recompute", ranks=1, queued=True)
    drafter = {"none": None, "ngram": NgramDraft()}.get(draft) if draft in ("none", "ngram") else OracleDraft()
    rig = Rig(
        kv=kv,
        prefix_cache=cache,
        chunk=chunk,
        blocks=blocks,
        batch=batch,
        budget=budget,
        batching=batching,
        depth=depth,
        drafter=drafter,
        max_draft=int(draft[-1]) if draft.startswith("oracle") else 4,
    )
    for i, prompt in enumerate(prompts()):
        rig.submit(str(i), prompt, NEW_TOKENS)
    rig.run()
    rig.submit("again", prompts()[5], NEW_TOKENS)
    rig.run()
    for i, prompt in enumerate([*prompts(), prompts()[5]]):
        result = rig.results["again" if i == len(prompts()) else str(i), 0]
        assert result.ids == expected(prompt, 0, NEW_TOKENS), (case, i)
        assert result.finish == "length"
        assert len(result.logprobs) == NEW_TOKENS
        assert result.accepted <= result.drafted
    assert rig.executor.most_tokens <= budget
    assert (rig.executor.num_followed > 0) == (depth == 2)
    assert rig.errors == {}
    assert rig.warnings == []
    rig.assert_empty()
    return rig


def counters(rig: Rig) -> dict[str, int]:
    return {
        "preemptions": rig.reports[-1].stats.preemptions,
        "hits": rig.reports[-1].stats.prefix_hits,
        "verified": rig.executor.num_verified,
        "accepted": rig.executor.num_accepted,
        "followed": rig.executor.num_followed,
    }


def test_sampled_grid_equals_plain_decoding_and_takes_every_path():
    seen = dict.fromkeys(("preemptions", "hits", "verified", "accepted", "followed"), 0)
    for case in random.Random(20).sample(GRID, 150):
        for name, value in counters(run_case(case)).items():
            seen[name] += value > 0
    assert all(count >= 15 for count in seen.values()), seen


@pytest.mark.full
@pytest.mark.parametrize("kv", ["paged", "contiguous", "recompute"])
@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.timeout(1800)
def test_whole_grid(kv, batching):
    for case in GRID:
        if case[0] == kv and case[6] == batching:
            run_case(case)


def test_preemption_is_invisible():
    """1.3: two requests that together do not fit, over every pool that forces one out."""
    for blocks in range(5, 9):
        rig = Rig(blocks=blocks, prefix_cache=blocks % 2 == 0)
        rig.submit("a", [1, 2, 3, 4, 5, 6], 12)
        rig.submit("b", [9, 8, 7, 6, 5, 4], 12)
        rig.run()
        assert rig.reports[-1].stats.preemptions > 0
        assert rig.results["a", 0].preemptions == 0, "the older request never gives way"
        assert rig.results["b", 0].preemptions > 0
        for key, prompt in (("a", [1, 2, 3, 4, 5, 6]), ("b", [9, 8, 7, 6, 5, 4])):
            assert rig.results[key, 0].ids == expected(prompt, 0, 12)
            assert len(rig.results[key, 0].ids) == 12
        rig.assert_empty()


def test_hits_at_every_suffix_length():
    """1.5: a warm 12-token prefix and 1 to 5 tokens more."""
    rig = Rig()
    prefix = list(range(20, 32))
    rig.submit("warm", prefix, 1)
    rig.run()
    for extra in range(6):
        prompt = prefix + list(range(extra))
        rig.submit(str(extra), prompt, 6)
        rig.run()
        result = rig.results[str(extra), 0]
        assert result.ids == expected(prompt, 0, 6)
        shared = {0: 8, 5: 16}.get(extra, 12)
        assert result.cached == shared, "every full block but the last token's, earlier suffixes included"


def test_two_groups_with_a_window():
    """Blocks behind the window come free; a hit must serve both groups."""
    rig = Rig(windows=(None, 6), blocks=40, chunk=5, budget=16, batch=3)
    for i, prompt in enumerate(prompts()):
        rig.submit(str(i), prompt, NEW_TOKENS)
    rig.run()
    hits = rig.reports[-1].stats.prefix_hits
    rig.submit("again", prompts()[5], NEW_TOKENS)
    rig.run()
    assert rig.reports[-1].stats.prefix_hits > hits
    for i, prompt in enumerate(prompts()):
        assert rig.results[str(i), 0].ids == expected(prompt, 0, NEW_TOKENS)
    assert rig.results["again", 0].ids == expected(prompts()[5], 0, NEW_TOKENS)
    rig.assert_empty()


def test_choices_share_the_prompt_and_differ():
    """2.3: n = 4 gives four different outputs, each reproducible, and one prefill of the prompt."""
    prompt = list(range(40, 57))
    rig = Rig(batch=3)
    rig.submit("n", prompt, 10, n=4, seed=5)
    rig.run()
    outputs = [rig.results["n", choice].ids for choice in range(4)]
    assert outputs == [expected(prompt, 5 + choice, 10) for choice in range(4)]
    assert len({tuple(ids) for ids in outputs}) == 4
    assert [rig.results["n", choice].cached for choice in range(4)] == [0, 16, 16, 16]
    rig.assert_empty()


def test_unseeded_requests_differ():
    rig = Rig()
    prompt = list(range(11))
    rig.submit("a", prompt, 16, seed=None)
    rig.submit("b", prompt, 16, seed=None)
    rig.run()
    assert rig.results["a", 0].ids != rig.results["b", 0].ids


def test_a_b_a_equals_a_fresh_engine():
    """1.27: nothing of an earlier or aborted request survives."""
    a, b = [3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]
    rig = Rig(blocks=6)
    for key, prompt in (("a1", a), ("b", b)):
        rig.submit(key, prompt, 10)
        rig.run()
    rig.submit("gone", a, 10)
    for _ in range(4):
        rig.step()
    rig.engine.abort("gone")
    rig.submit("a2", a, 10)
    rig.run()
    assert rig.results["a1", 0].ids == rig.results["a2", 0].ids == expected(a, 0, 10)
    assert rig.results["b", 0].ids == expected(b, 0, 10)
    rig.assert_empty()
