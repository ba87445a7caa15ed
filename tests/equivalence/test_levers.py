"""H1: the same six prompts give the oracle's ids and logits under every mix of levers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.equivalence.levers import ENOUGH, GRID, LARGE, Mix, build_mix
from tests.equivalence.models import LENGTHS, NEW_TOKENS, OPTIONS, PROMPTS, Model
from tests.equivalence.oracle import Tally
from tests.equivalence.rig import CONTEXT, Rig, submit

GetModel = Callable[[str], Model]
NAMES = tuple(OPTIONS)
SAMPLE = random.Random(11).sample(range(len(GRID)), 60)
FIXED = (
    Mix(),
    Mix(blocks=ENOUGH, prefix_cache=False),
    Mix(blocks=ENOUGH, chunk=1, draft="k3"),
    Mix(draft="ngram", chunk=3, batch=2),
    Mix(kv="contiguous", blocks=ENOUGH + 4, draft="k5"),
    Mix(kv="recompute", chunk=4),
    Mix(attention="reference", expand_gqa=True, draft="k1"),
    Mix(batching="static", batch=2, draft="k2"),
    Mix(overlap=True, chunk=3),
    Mix(overlap=True, blocks=ENOUGH),
)
"""Every value of every lever, on every model."""


def check(model: Model, mix: Mix, tally: Tally) -> Counter[str]:
    """Run all prompts at once, then all again where a cache is warm now; return what happened."""
    rig = build_mix(model, mix)
    hits = 0
    for turn in ("cold", "warm") if mix.caches else ("cold",):
        hits, first = rig.hits, len(rig.tap.rows)
        results = rig.run([submit(f"{turn}{i}", prompt, NEW_TOKENS) for i, prompt in enumerate(PROMPTS)])
        for i, want in enumerate(model.oracle):
            key, where = f"{turn}{i}", (mix, turn, i)
            result = results[key, 0]
            assert result.error is None, where
            assert result.finish == "length", where
            before = tally.skipped
            tally.ids(want, result.ids, where)
            met = tally.logits(want, (r for r in rig.tap.rows[first:] if r.request == key), where)
            assert met == NEW_TOKENS or tally.skipped > before, (where, met)
        rig.assert_empty()
    happened = counters(rig) + Counter({"warm hits": rig.hits - hits})
    assert_path(rig, mix, happened)
    rig.engine.close()
    return happened


def counters(rig: Rig) -> Counter[str]:
    return Counter(rig.tap.counts) + Counter(
        {
            "preemptions": rig.preemptions,
            "accepted": rig.accepted,
            "rejected": sum(r.stats.drafted for r in rig.reports) - rig.accepted,
        }
    )


def assert_path(rig: Rig, mix: Mix, happened: Counter[str]) -> None:
    """The levers of a mix were really pulled."""
    plugins = rig.card.plugins
    assert (plugins["kv"], plugins["attention"]) == (mix.kv, mix.attention)
    assert happened["widest"] <= mix.batch
    if not mix.caches:
        assert rig.hits == 0, mix
    elif mix.blocks == LARGE:
        assert happened["warm hits"] > 0, mix
    if mix.batch == 6 and mix.blocks == LARGE and mix.chunk == CONTEXT:
        assert happened["widest"] == 6, mix
    if mix.chunk < max(LENGTHS) and mix.kv == "paged":
        assert happened["prefill rows"] > happened["entered"], mix
    if mix.must_preempt:
        assert happened["preemptions"] > 0, mix
    if mix.verifies:
        assert happened["verify rows"] > 0, mix
        assert happened["accepted"] > 0 or mix.draft == "ngram", mix
        assert happened["rejected"] > 0 or mix.draft == "ngram", mix
    else:
        assert happened["verify rows"] == 0, mix
    assert (happened["followed"] > 0) == mix.follows, mix
    if mix.batching == "static":
        assert happened["joined"] == 0, mix
    layers = rig.runner.kv
    heads = next(iter(layers.values()))["k"].shape[2]
    assert (heads == rig.runner.decoder.spec.layers[0].attention.heads) or not mix.expand_gqa


@pytest.mark.parametrize("name", NAMES)
def test_chosen_mixes_on_every_model(model: GetModel, name: str) -> None:
    tally = Tally()
    for mix in FIXED:
        check(model(name), mix, tally)
    tally.assert_few_skipped()


@pytest.mark.parametrize("third", range(3))
def test_sampled_mixes_take_every_path(model: GetModel, third: int) -> None:
    """Each mix asserts its own path; over all of them every path is common, not an accident."""
    tally, seen = Tally(), Counter[str]()
    for index in SAMPLE[third::3]:
        mix = replace(GRID[index], overlap=bool(index % 2))
        happened = check(model(NAMES[index % len(NAMES)]), mix, tally)
        seen.update({name: 1 for name, count in happened.items() if count})
    tally.assert_few_skipped()
    for name in ("preemptions", "warm hits", "verify rows", "accepted", "rejected", "joined", "mixed steps"):
        assert seen[name] >= 2, (name, seen)


def test_sampled_mixes_whose_steps_overlap(model: GetModel) -> None:
    """Whatever a step changes (preemption, admission, chunks, ends), the next one was planned before it was known."""
    able = [index for index, mix in enumerate(GRID) if replace(mix, overlap=True).follows]
    tally, seen = Tally(), Counter[str]()
    for index in random.Random(5).sample(able, 14):
        happened = check(model(NAMES[index % len(NAMES)]), replace(GRID[index], overlap=True), tally)
        seen.update({name: 1 for name, count in happened.items() if count})
    tally.assert_few_skipped()
    for name in ("preemptions", "warm hits", "joined", "mixed steps"):
        assert seen[name] >= 2, (name, seen)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("attention", ["torch", "reference"])
@pytest.mark.parametrize("kv", ["paged", "contiguous", "recompute"])
def test_whole_grid(model: GetModel, kv: str, attention: str) -> None:
    tally = Tally()
    for index, mix in enumerate(GRID):
        if (mix.kv, mix.attention) == (kv, attention):
            check(model(NAMES[index % len(NAMES)]), replace(mix, overlap=bool(index % 2)), tally)
    tally.assert_few_skipped()
