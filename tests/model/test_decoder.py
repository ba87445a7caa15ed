"""Logits against transformers: prefill, chunks, decode, ragged batches; both backends; NaN poison."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.model.harness import BACKENDS, Steps, assert_close, load
from tests.model.oracle import hf_logits
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen2, tiny_qwen3

torch.set_num_threads(1)
PROMPTS = {f"s{n}": [(7 * i * n + 3 * n) % 280 + 4 for i in range(n)] for n in (1, 3, 4, 5, 8, 17, 33)}

MODELS = {
    "llama": lambda path: tiny_llama(path),
    "llama-biased-tied": lambda path: tiny_llama(path, attention_bias=True, mlp_bias=True, tied=True),
    "llama-head-dim": lambda path: tiny_llama(path, hidden=48, heads=4, head_dim=16, kv_heads=2, rope_theta=500.0),
    "qwen2": lambda path: tiny_qwen2(path),
    "qwen3": lambda path: tiny_qwen3(path, head_dim=20, attention_bias=True),
}

WRITERS = {"llama": tiny_llama, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ragged_prefill_equals_transformers(model: Path, backend: str) -> None:
    steps = Steps(load(model), BACKENDS[backend](), poison=True)
    for (name, tokens), logits in zip(PROMPTS.items(), steps.run(list(PROMPTS.items())), strict=True):
        assert logits.shape[0] == len(tokens), name
        assert_close(logits, hf_logits(model, tokens))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chunk", [1, 3, 4, 20])
def test_chunks_beside_others_equal_transformers(model: Path, backend: str, chunk: int) -> None:
    """Prefill in chunks while another sequence decodes and a third verifies several tokens."""
    steps = Steps(load(model), BACKENDS[backend](), poison=True)
    long, other, third = PROMPTS["s33"], PROMPTS["s17"], PROMPTS["s8"]
    steps.run([("b", other[:5]), ("c", third[:2])])
    parts: list[torch.Tensor] = []
    for start in range(0, len(long), chunk):
        at, verify = 5 + start // chunk, 2 + start // chunk
        work = [("a", long[start : start + chunk])]
        work = [("b", other[at : at + 1]), *work] if at < len(other) else work
        work = [*work[:-1], ("c", third[verify : verify + 3]), work[-1]] if verify < len(third) else work
        results = dict(zip([name for name, _ in work], steps.run(work), strict=True))
        parts.append(results["a"])
        if "b" in results:
            assert_close(results["b"], hf_logits(model, other)[at : at + 1])
        if "c" in results:
            assert_close(results["c"], hf_logits(model, third)[verify : verify + 3])
            steps.truncate("c", verify + 1)  # two drafts rejected; their slots are written again
    assert_close(torch.cat(parts), hf_logits(model, long))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (6, 3), (4, 1), (7, 7)])
@pytest.mark.parametrize("expand", [False, True])
def test_kv_head_of_each_query_head(tmp_path: Path, backend: str, heads: int, kv_heads: int, expand: bool) -> None:
    path = tiny_llama(tmp_path, heads=heads, kv_heads=kv_heads, head_dim=16, hidden=heads * 8, layers=1)
    steps = Steps(load(path, expand_gqa=expand), BACKENDS[backend]())
    tokens = PROMPTS["s17"]
    logits = torch.cat([*steps.run([("a", tokens[:9])]), *[steps.run([("a", [t])])[0] for t in tokens[9:]]])
    assert_close(logits, hf_logits(path, tokens))


@pytest.mark.parametrize("suffix", [1, 2, 3, 4, 5])
def test_resuming_from_cached_keys_equals_a_cold_run(tmp_path: Path, suffix: int) -> None:
    """A small rope base makes every offset matter."""
    path = tiny_llama(tmp_path, rope_theta=20.0)
    steps = Steps(load(path), BACKENDS["torch"]())
    tokens = PROMPTS["s33"][: 12 + suffix]
    steps.run([("warm", tokens[:12])])
    steps.tables["hit"], steps.lengths["hit"] = list(steps.tables["warm"]), 12
    assert_close(steps.run([("hit", tokens[12:])])[0], hf_logits(path, tokens)[12:])


@pytest.mark.parametrize("arch", WRITERS)
def test_gguf_equals_the_same_weights_in_hf_form(tmp_path: Path, arch: str) -> None:
    """Rows of q and k are interleaved in a llama GGUF, with the number of KV heads for k."""
    options = {"heads": 6, "kv_heads": 2, "head_dim": 16, "hidden": 96}
    hf = WRITERS[arch](tmp_path / "hf", **options)
    gguf = tiny_gguf(tmp_path / "gguf", arch=arch, **options)
    tokens = PROMPTS["s17"]
    got = Steps(load(gguf), BACKENDS["torch"]()).run([("a", tokens)])[0]
    assert_close(got, hf_logits(hf, tokens))


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    tokens = PROMPTS["s17"]
    want = Steps(load(path), BACKENDS["torch"]()).run([("a", tokens)])[0]
    got = Steps(load(path, dtype=torch.bfloat16), BACKENDS["torch"]()).run([("a", tokens)])[0]
    assert got.dtype == torch.float32
    assert 1e-4 < (got - want).abs().max() < 0.15
