"""H5: what lies in KV slots that nobody owns can never reach a logit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inferd.engine.batch import Batch
from tests.equivalence.levers import ENOUGH, LARGE, Mix, build_mix
from tests.equivalence.models import NEW_TOKENS, PROMPTS, Model
from tests.equivalence.oracle import Tally
from tests.equivalence.rig import BLOCK_SIZE, Rig, submit

MIXES = (
    Mix(blocks=ENOUGH + 4, chunk=3, draft="k4"),
    Mix(blocks=ENOUGH, batch=6),
    Mix(draft="k3"),
    Mix(batching="static", batch=2, draft="k2", blocks=ENOUGH + 4),
    Mix(kv="contiguous", draft="k2", blocks=LARGE, chunk=4),
    Mix(kv="recompute", blocks=ENOUGH + 4, chunk=4),
)


class Poison:
    """Fills, before a step, every slot without a computed token with NaN, in every layer."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.filled = 0
        self.spared_cached = 0

    def __call__(self, batch: Batch) -> None:
        for layer, planes in self._rig.runner.kv.items():
            owned = self._owned(self._rig.runner.decoder.attention_layers[layer].group)
            for plane in planes.values():
                plane.view(-1, *plane.shape[2:])[~owned] = float("nan")
            self.filled += int((~owned).sum())

    def _owned(self, group: int) -> torch.Tensor:
        """Slots of computed tokens that may still be read, and of blocks that the prefix cache offers."""
        scheduler = self._rig.scheduler
        owned = torch.zeros(scheduler.shape.num_blocks, BLOCK_SIZE, dtype=torch.bool)
        running = scheduler.running
        for seq in (*running.prefilling, *running.decoding):
            for position in range(seq.num_computed):
                block = seq.tables[group][position // BLOCK_SIZE]
                if block >= 0:
                    owned[block, position % BLOCK_SIZE] = True
        for pool in getattr(scheduler.kv, "_pools", ())[group : group + 1]:
            for block in range(pool.num_blocks) if hasattr(pool, "content") else ():
                if pool.content(block) is not None:
                    owned[block] = True
                    self.spared_cached += 1
        return owned.view(-1)


@pytest.mark.parametrize("attention", ["torch", "reference"])
@pytest.mark.parametrize("name", ["llama", "qwen2-window"])
def test_unowned_slots_never_reach_a_logit(model: Callable[[str], Model], name: str, attention: str) -> None:
    tally = Tally()
    for base in MIXES:
        mix = Mix(**{**base.__dict__, "attention": attention})
        rig = build_mix(model(name), mix)
        poison = rig.tap.before_step = Poison(rig)
        for turn in ("cold", "warm"):
            rig.tap.rows.clear()
            results = rig.run([submit(f"{turn}{i}", prompt, NEW_TOKENS) for i, prompt in enumerate(PROMPTS)])
            for i, want in enumerate(model(name).oracle):
                assert results[f"{turn}{i}", 0].error is None, mix
                tally.ids(want, results[f"{turn}{i}", 0].ids, mix)
                rows = [row for row in rig.tap.rows if row.request == f"{turn}{i}"]
                tally.logits(want, rows, mix)
                assert all(bool(torch.isfinite(row.logits).all()) for row in rows)
        assert poison.filled > 0
        assert (poison.spared_cached > 0) == mix.caches
        rig.assert_empty()
    tally.assert_few_skipped()


def test_poison_in_an_owned_slot_is_seen(model: Callable[[str], Model]) -> None:
    """The harness has power: one NaN among the keys of a running sequence ends it."""
    rig = build_mix(model("llama"), Mix(prefix_cache=False))

    def spoil(batch: Batch) -> None:
        if rig.tap.counts["steps"] == 5:
            seq = next(s for s in rig.scheduler.running.decoding if s.request == "5")
            rig.runner.kv[1]["k"][seq.tables[0][2], 1, 0, 0] = float("nan")

    rig.tap.before_step = spoil
    results = rig.run([submit(str(i), prompt, NEW_TOKENS) for i, prompt in enumerate(PROMPTS)])
    error = results["5", 0].error
    assert error is not None
    assert error.code == "numeric_error"
    for i in range(5):
        Tally().ids(model("llama").oracle[i], results[str(i), 0].ids)
