"""2.13: a row whose logits are no numbers ends its own request, and nothing of it is used again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inferd.engine.batch import Batch
from tests.equivalence.levers import Mix, build_mix
from tests.equivalence.models import NEW_TOKENS, PROMPTS, Model
from tests.equivalence.oracle import Tally
from tests.equivalence.rig import Rig, Row, submit

VICTIM = 5
BAD: dict[str, Callable[[torch.Tensor], object]] = {
    "all NaN": lambda row: row.fill_(float("nan")),
    "one NaN": lambda row: row[17:18].fill_(float("nan")),
    "one +inf": lambda row: row[17:18].fill_(float("inf")),
    "all -inf": lambda row: row.fill_(float("-inf")),
}
MIXES = (Mix(), Mix(chunk=3, draft="k3"), Mix(attention="reference", batching="static"))


def check(model: Model, rig: Rig, *, outputs: int | None) -> None:
    """Run all prompts: the victim fails, the others and a later run of the same prompt are right."""
    requests = [submit(str(i), prompt, NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]
    results = rig.run(requests)
    failed = results[str(VICTIM), 0]
    assert failed.error is not None
    assert failed.error.code == "numeric_error"
    assert "finite" in failed.error.message
    assert failed.finish is None
    assert outputs is None or failed.ids == list(model.oracle[VICTIM].ids[:outputs])
    tally = Tally()
    for i in range(VICTIM):
        tally.ids(model.oracle[i], results[str(i), 0].ids)
    rig.assert_empty()
    rig.tap.on_row = rig.tap.before_step = None
    again = rig.run([submit("again", PROMPTS[VICTIM], NEW_TOKENS)])["again", 0]
    assert again.error is None
    tally.ids(model.oracle[VICTIM], again.ids)
    tally.logits(model.oracle[VICTIM], [row for row in rig.tap.rows if row.request == "again"])
    tally.assert_few_skipped()


@pytest.mark.parametrize("mix", MIXES, ids=["plain", "drafts", "static"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_a_bad_row_ends_its_request_alone(model: Callable[[str], Model], kind: str, mix: Mix, sampled: bool) -> None:
    rig = build_mix(model("llama"), mix)
    length = len(PROMPTS[VICTIM]) + 2

    def spoil(row: Row) -> None:
        if row.request == str(VICTIM) and len(row.context) == length:
            BAD[kind](row.logits)

    rig.tap.on_row = spoil
    if sampled:
        results = rig.run([submit(str(i), p, NEW_TOKENS, temperature=1.0, top_k=9) for i, p in enumerate(PROMPTS)])
        assert {key for (key, _), result in results.items() if result.error} == {str(VICTIM)}
        assert len(results[str(VICTIM), 0].ids) == 2
        rig.assert_empty()
        return
    check(model("llama"), rig, outputs=2)


@pytest.mark.parametrize("plane", ["k", "v"])
def test_blocks_of_a_failed_request_are_not_found_again(model: Callable[[str], Model], plane: str) -> None:
    """NaN in a full block that is already in the prefix cache: the next request of that prompt computes it anew."""
    rig = build_mix(model("llama"), Mix())
    poisoned: list[int] = []

    def spoil(batch: Batch) -> None:
        for seq in rig.scheduler.running.decoding:
            if seq.request == str(VICTIM) and seq.num_output == 2 and not poisoned:
                poisoned.append(seq.tables[0][2])
                rig.runner.kv[0][plane][poisoned[0]] = float("nan")

    rig.tap.before_step = spoil
    check(model("llama"), rig, outputs=2)
    assert len(poisoned) == 1


def test_one_bad_choice_of_three_ends_the_request_and_frees_all(model: Callable[[str], Model]) -> None:
    rig = build_mix(model("llama"), Mix())

    def spoil(row: Row) -> None:
        if row.choice == 1 and len(row.context) == len(PROMPTS[4]) + 3:
            row.logits.fill_(float("nan"))

    rig.tap.on_row = spoil
    results = rig.run([submit("n", PROMPTS[4], 10, n=3, temperature=1.0), submit("other", PROMPTS[3], NEW_TOKENS)])
    assert all(results["n", choice].error for choice in range(3))
    assert results["other", 0].ids == list(model("llama").oracle[3].ids)
    rig.assert_empty()


def test_rules_that_leave_no_token_are_told_apart_from_bad_numerics(model: Callable[[str], Model]) -> None:
    rig = build_mix(model("llama"), Mix())
    nothing_left = submit("x", PROMPTS[3], 5, allowed_token_ids=(40,), bad_word_ids=((40,),))
    results = rig.run([nothing_left, submit("other", PROMPTS[3], NEW_TOKENS)])
    error = results["x", 0].error
    assert error is not None
    assert "no token is left" in error.message
    assert results["other", 0].ids == list(model("llama").oracle[3].ids)
    rig.assert_empty()
