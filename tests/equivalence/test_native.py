"""H1 for the native CPU path: under every mix of levers the same bits, and ids and logits close to the oracle's."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from inferd.engine.offline import Result
from tests.equivalence import smollm2_oracle
from tests.equivalence.levers import GRID, LARGE, Mix, build_mix
from tests.equivalence.models import NEW_TOKENS, OPTIONS, PROMPTS, Model
from tests.equivalence.rig import Rig, build, submit
from tests.equivalence.test_smollm2 import QUESTIONS, chat
from tests.smollm2 import smollm2_path
from tests.tiny import tiny_gguf

NATIVE = [replace(mix, attention="cpu") for mix in GRID if mix.attention == "torch" and not mix.expand_gqa]
SAMPLE = random.Random(12).sample(NATIVE, 36)
PACKED = ("Q4_0", "Q4_1", "Q5_1", "Q8_0", "BF16")
TOP = 20
"""Log-probabilities compared with each token, of a vocabulary of 290."""
ROOM = {"context": 256, "block_size": 16, "blocks": 80, "batch": 4}
NEAR, SURE = 0.05, 0.2
"""Nat by which the log-probability of a chosen token may differ on average, and a lead that rounding may not turn."""

Lines = list[tuple[list[int], list[object]]]
"""Ids and log-probabilities of each prompt."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, model: Callable[[str], Model]) -> Callable[[str], Model]:
    """Models by name, made once: those of the other harness, and GGUF files of packed matrices."""
    folder = tmp_path_factory.mktemp("native")

    @cache
    def get(name: str) -> Model:
        if name not in PACKED:
            return model(name)
        path = tiny_gguf(folder / name, quant=name, hidden=64, heads=4, kv_heads=2, rope_theta=50.0)
        return Model(path, path, model("llama").oracle)  # its ids only guide the drafts

    return get


def lines(rig: Rig, turn: str) -> Lines:
    requests = [submit(f"{turn}{i}", prompt, NEW_TOKENS, logprobs=TOP) for i, prompt in enumerate(PROMPTS)]
    results = rig.run(requests)
    return [_line(results[request.key, 0]) for request in requests]


def _line(result: Result) -> tuple[list[int], list[object]]:
    assert result.error is None
    assert result.finish == "length"
    return result.ids, list(result.logprobs)


def same_bits(model: Model, mix: Mix, want: Lines, threads: int, kv_format: str = "auto") -> Counter[str]:
    """Run all prompts under a mix, cold and, where it caches, warm; return what happened."""
    rig = build_mix(model, mix, linear="native", threads=threads, kv_format=kv_format)
    assert rig.card.eager_because == "", "the step was not recorded"
    for turn in ("cold", "warm") if mix.caches else ("cold",):
        assert lines(rig, turn) == want, (mix, turn, threads)
    rig.assert_empty()
    happened = Counter({"preemptions": rig.preemptions, "hits": rig.hits, "accepted": rig.accepted})
    if mix.must_preempt:
        assert rig.preemptions, mix
    if mix.caches and mix.blocks == LARGE:
        assert rig.hits, mix
    rig.engine.close()
    return happened


def plain(model: Model, kv_format: str = "auto") -> Lines:
    mix = Mix(attention="cpu", batch=1, prefix_cache=False)
    return lines(build_mix(model, mix, linear="native", threads=1, kv_format=kv_format), "plain")


@pytest.mark.parametrize("third", range(3))
def test_sampled_mixes_give_the_same_bits(models: Callable[[str], Model], third: int) -> None:
    seen: Counter[str] = Counter()
    names = [*PACKED, "llama", "qwen2-window"]
    wanted = {name: plain(models(name)) for name in names}
    for index, mix in enumerate(SAMPLE[third::3]):
        name = names[index % len(names)]
        happened = same_bits(models(name), mix, wanted[name], threads=1 + index % 2)
        seen.update({what: 1 for what, count in happened.items() if count})
    assert all(seen[what] for what in ("preemptions", "hits", "accepted")), seen


@pytest.mark.parametrize("kv_format", ["fp32", "bf16", "fp16", "int8", "fp8"])
def test_every_kv_format_gives_the_same_bits_under_a_mix(models: Callable[[str], Model], kv_format: str) -> None:
    """Written, shared by prefix, preempted and written again; and what it keeps is not what another keeps."""
    seen: Counter[str] = Counter()
    mixes = [mix for mix in SAMPLE if mix.kv == "paged" and mix.caches]
    for name, mix in zip(("Q4_1", "qwen2-window", "BF16"), random.Random(kv_format).sample(mixes, 3), strict=True):
        wanted = plain(models(name), kv_format)
        seen += same_bits(models(name), mix, wanted, threads=2, kv_format=kv_format)
        assert (wanted == plain(models(name), "fp32")) == (kv_format == "fp32")
    assert seen["preemptions"] + seen["hits"] + seen["accepted"], seen


@pytest.mark.parametrize("name", OPTIONS)
def test_float_weights_give_the_ids_of_the_oracle(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    for got, want in zip(plain(model), model.oracle, strict=True):
        assert tuple(got[0]) == want.ids


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kv", ["paged", "contiguous", "recompute"])
def test_whole_grid(models: Callable[[str], Model], kv: str) -> None:
    names = [*PACKED, *OPTIONS]
    wanted = {name: plain(models(name)) for name in names}
    for index, mix in enumerate(NATIVE):
        if mix.kv == kv:
            name = names[index % len(names)]
            same_bits(models(name), mix, wanted[name], threads=1 + index % 2)


@pytest.mark.smollm2
def test_the_default_model_stays_close_to_float32() -> None:
    """Log-probabilities near those of transformers on the same weights, each token its first where it is sure."""
    rig = build(smollm2_path(), linear="native", plugins={"attention": "cpu"}, **ROOM)
    assert rig.card.eager_because == ""
    prompts, count = [chat(question) for question in QUESTIONS[5:9]], 16
    results = rig.run([submit(str(i), prompt, count, logprobs=TOP) for i, prompt in enumerate(prompts)])
    oracle = smollm2_oracle.load(smollm2_path())
    errors: list[float] = []
    unsure = 0
    for i, prompt in enumerate(prompts):
        result = results[str(i), 0]
        want = smollm2_oracle.logits(oracle, [*prompt, *result.ids[:-1]], last=count).log_softmax(-1)
        for row, token, said in zip(want, result.ids, result.logprobs, strict=True):
            errors.append(abs(said.logprob - float(row[token])))
            first, second = row.topk(2).values.tolist()
            unsure += first - second < SURE
            assert first - second < SURE or int(row.argmax()) == token
    assert statistics.mean(errors) < NEAR
    assert unsure < 0.25 * len(errors)
    rig.engine.close()
