"""2.11: log-probabilities are those of the model itself, for each token, however the request is scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from inferd_client.protocol import TokenLogprob
from tests.equivalence.levers import ENOUGH, Knowing, Mix, rigged
from tests.equivalence.models import PROMPTS, Model
from tests.equivalence.rig import build, submit
from tests.model.oracle import hf_logits

NEW = 10
MIXES = {
    "plain": Mix(),
    "chunks": Mix(chunk=3, batch=2),
    "tight": Mix(blocks=ENOUGH, chunk=4, prefix_cache=False),
    "drafts": Mix(draft="k3", attention="reference"),
    "recomputed": Mix(kv="recompute", chunk=4),
}


def assert_logprobs(got: Sequence[TokenLogprob | None], tokens: Sequence[int], logits: torch.Tensor, top: int) -> None:
    """Each entry is log_softmax of its row of logits: its token, that token's rank, and the most likely ones."""
    want = logits.log_softmax(-1)
    assert len(got) == len(tokens) == len(want)
    for entry, token, row in zip(got, tokens, want, strict=True):
        assert entry is not None
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=2e-4)
        above = row > row[token]
        assert entry.rank - 1 in range(int((row > row[token] + 1e-4).sum()), int((row > row[token] - 1e-4).sum()) + 1)
        assert entry.rank == 1 + int(above.sum()) or float((row - row[token]).abs()[above].min()) < 1e-4
        assert len(entry.top) == top
        values = row.topk(top).values.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values, abs=2e-4)
        assert all(float(row[other]) == pytest.approx(value, abs=2e-4) for other, value in entry.top)


@pytest.mark.parametrize("name", MIXES)
def test_output_and_prompt_logprobs_equal_log_softmax(model: Callable[[str], Model], name: str) -> None:
    """top_p .5 and a penalty change the choice, never the numbers; N = 0, 1, 5 alternatives, and none asked."""
    path, mix = model("qwen2").path, MIXES[name]
    tops = (0, 1, 5)
    requests = [
        submit(
            str(i), prompt, NEW, temperature=1.0, top_p=0.5, seed=i, logprobs=tops[i % 3], prompt_logprobs=tops[-i % 3]
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    requests.append(submit("none", PROMPTS[2], NEW))
    drafter = None
    if mix.draft != "none":
        plain = build(path).run(requests)
        drafter = Knowing([[*r.prompt, *plain[r.key, 0].ids] for r in requests])
    rig = rigged(path, mix, drafter, plugins={"draft": "ngram"} if drafter else {})
    for turn in ("cold", "warm"):
        results = rig.run(requests)
        for i, prompt in enumerate(PROMPTS):
            result = results[str(i), 0]
            logits = hf_logits(model("qwen2").oracle_path, [*prompt, *result.ids])
            assert_logprobs(result.logprobs, result.ids, logits[len(prompt) - 1 : -1], tops[i % 3])
            first, *others = result.prompt_logprobs
            assert first is None, "nothing comes before the first token"
            assert_logprobs(others, prompt[1:], logits[: len(prompt) - 1], tops[-i % 3])
        assert results["none", 0].logprobs == results["none", 0].prompt_logprobs == [], turn
        rig.assert_empty()
    assert rig.preemptions > 0 or name != "tight"
    assert rig.accepted > 0 or name != "drafts"
    assert (rig.tap.counts["prefill rows"] > rig.tap.counts["entered"]) == (mix.chunk < 17)


def test_sampled_tokens_are_not_all_of_rank_one(model: Callable[[str], Model]) -> None:
    rig = build(model("llama").path)
    result = rig.run([submit("r", PROMPTS[3], 40, temperature=1.5, logprobs=2)])["r", 0]
    assert len({entry.rank for entry in result.logprobs}) > 5
    assert any(entry.token not in dict(entry.top) for entry in result.logprobs)


def test_a_request_for_prompt_logprobs_after_a_cached_prompt_gets_all_of_them(model: Callable[[str], Model]) -> None:
    """A prefix hit would skip the rows whose logits are wanted."""
    rig = build(model("llama").path)
    rig.run([submit("warm", PROMPTS[5], 4)])
    result = rig.run([submit("again", PROMPTS[5], 4, prompt_logprobs=1)])["again", 0]
    logits = hf_logits(model("llama").oracle_path, PROMPTS[5])
    assert_logprobs(result.prompt_logprobs[1:], PROMPTS[5][1:], logits[:-1], 1)
