"""The kit's own oracles and reports."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from inferd.plugin.conformance import Report, Result, check, names
from inferd.plugin.conformance.attention_oracle import attended, rope_table, written
from inferd.plugin.conformance.gguf_oracle import TYPES, random_rows
from inferd.plugin.contracts import API, PluginSpec
from inferd.plugin.errors import OptionsError, PluginError
from inferd.plugin.types import KINDS, AttentionLayer, Gqa, Qkv
from tests.conformance.mutants import describe
from tests.conformance.mutants.draft import IgnoresLimit, RepeatsLast
from tests.conformance.mutants.kv import NaiveKV


@pytest.mark.parametrize("type_", TYPES)
def test_block_decoders_agree_with_the_gguf_package(type_: str) -> None:
    data, values = random_rows(type_, 3, 512, seed=5)
    kind = gguf.GGMLQuantizationType[type_]
    raw = np.frombuffer(data, np.uint8).reshape(3, -1)
    np.testing.assert_allclose(gguf.dequantize(raw, kind), np.array(values), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 1), (5, 5)])
@pytest.mark.parametrize("window", [None, 4])
def test_the_attention_oracle_agrees_with_torch(heads: int, kv_heads: int, window: int | None) -> None:
    spec = Gqa(heads=heads, kv_heads=kv_heads, head_dim=8, scale=0.3, rope=None, window=window)
    x = Qkv(*(torch.randn(11, n, 8, generator=torch.Generator().manual_seed(n)) for n in (heads, kv_heads, kv_heads)))
    layer = AttentionLayer(index=0, group=0, spec=spec, cos=None, sin=None)
    got = attended(layer, spec, written(layer, x))
    mask = torch.ones(11, 11, dtype=torch.bool).tril()
    mask = mask if window is None else mask.triu(1 - window)
    q, k, v = (plane.double().transpose(0, 1) for plane in x)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(got, want.transpose(0, 1))


def test_the_rope_oracle_agrees_with_transformers() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = rope_table(9, 8, 100.0)
    spec = Gqa(heads=2, kv_heads=1, head_dim=8, scale=1.0)
    layer = AttentionLayer(index=0, group=0, spec=spec, cos=cos, sin=sin)
    x = Qkv(torch.randn(9, 2, 8), torch.randn(9, 1, 8), torch.randn(9, 1, 8))
    got = written(layer, x)
    q, k = apply_rotary_pos_emb(x.q.transpose(0, 1)[None], x.k.transpose(0, 1)[None], cos[None], sin[None])
    torch.testing.assert_close(got.q.float(), q[0].transpose(0, 1))
    torch.testing.assert_close(got.k.float(), k[0].transpose(0, 1))
    angle = torch.tensor(7 * 100.0 ** (-2 / 8))
    torch.testing.assert_close(cos[7, 1], angle.cos())


def test_sinks_and_soft_caps_by_hand() -> None:
    spec = Gqa(heads=1, kv_heads=1, head_dim=2, scale=1.0, rope=None, sinks=True, softcap=2.0)
    layer = AttentionLayer(index=0, group=0, spec=spec, cos=None, sin=None, sinks=torch.tensor([0.5]))
    x = Qkv(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, -2.0]]]))
    score = 2 * np.tanh(3 / 2)
    weight = np.exp(score) / (np.exp(score) + np.exp(0.5))
    got = attended(layer, spec, written(layer, x))
    np.testing.assert_allclose(got[0, 0].numpy(), [weight, -2 * weight], rtol=1e-6)


def test_a_report_names_what_failed_and_reads_as_text() -> None:
    report = check(describe(IgnoresLimit, "draft"))
    assert isinstance(report, Report)
    assert report.failed == ("limits",)
    assert "draft mutant: FAILED 1 of" in str(report)
    assert "for k 0" in str(report) or "and limit" in str(report)
    good = check(describe(RepeatsLast, "draft"))
    assert good.ok
    assert "conforms" in str(good)


def test_whatever_a_plugin_raises_fails_its_check_only() -> None:
    report = check(describe(_Raises, "draft"))
    assert "description" not in report.failed
    assert all("ZeroDivisionError" in r.message for r in report.results if r.outcome == "failed")


class _Raises(RepeatsLast):
    def propose(self, sequences: object, k: int) -> list[list[int]]:
        raise ZeroDivisionError("no")


def test_the_run_can_be_limited_to_named_checks() -> None:
    report = check(describe(NaiveKV, "kv"), only=("domains",))
    assert [r.check for r in report.results] == ["domains"]
    with pytest.raises(ValueError, match="no such check for kind kv: domain"):
        check(describe(NaiveKV, "kv"), only=("domain",))


def test_what_cannot_be_checked_is_said_before_any_check() -> None:
    with pytest.raises(PluginError, match="is no KVManager class"):
        check(describe(RepeatsLast, "kv"))
    with pytest.raises(OptionsError, match="takes no options"):
        check(describe(RepeatsLast, "draft"), options={"a": 1})
    newer = PluginSpec(name="n", kind="draft", target=f"{__name__}:_Raises", api=(API[0] + 1, 0))
    assert "description" in check(newer, only=("description",)).failed


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_says_what_it_shows(kind: str) -> None:
    from inferd.plugin.conformance.check import _checks

    checks = _checks(kind)  # pyright: ignore[reportArgumentType]
    assert len(checks) == len(set(names(kind)))  # pyright: ignore[reportArgumentType]
    assert all(c.__doc__ and c.__doc__.endswith(".") for c in checks)


def test_results_are_plain_data() -> None:
    assert Report("kv", "x", (Result("a", "passed"), Result("b", "failed", "why"))).failed == ("b",)
