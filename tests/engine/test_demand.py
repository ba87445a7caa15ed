"""What steps take by hand and by counting one by one, and whose the time of a step is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.engine.batch import Row
from inferd.engine.demand import Demand, Scan, demand_of
from inferd.engine.report import by_bytes, by_tokens
from inferd.plugin.types import DenseMlp, Gqa, KVGroup, KVLayout, KVPlane, LayerSpec, Mla, ModelSpec
from tests.engine.toy import Rig

WINDOWS = st.none() | st.integers(1, 40)


def row(start: int, count: int, request: str = "r", *, samples: bool = True) -> Row:
    sequence: Any = SimpleNamespace(request=request)
    return Row(sequence, start, count, (), samples)


def spec(attention: Gqa | Mla, *, tied: bool, layers: int = 2) -> ModelSpec:
    layer = LayerSpec(attention, DenseMlp(48))
    return ModelSpec("test", 100, 32, (layer,) * layers, {}, 1e-5, 64, tied_embeddings=tied)


def layout(heads: int, width: int, *, window: int | None = None, layers: tuple[int, ...] = (0, 1)) -> KVLayout:
    return KVLayout(KVGroup(layers, (KVPlane("k", heads, width), KVPlane("v", heads, width)), window), "fp16", 16)


@given(WINDOWS, st.integers(0, 50), st.integers(0, 50))
def test_a_chunk_scans_what_its_tokens_scan(window: int | None, start: int, count: int) -> None:
    scan = Scan(3.0, window)
    assert scan.over(start, count) == pytest.approx(sum(scan.of(p + 1) for p in range(start, start + count)))


def test_a_gqa_model_by_hand() -> None:
    """4 heads of 8 over 2 KV heads on a hidden size of 32: 32 x 8 x (4 + 2 + 2) + 32 x 32 weights around attention."""
    around, mlp, embedding = 32 * 64 + 32 * 32, 3 * 32 * 48, 32 * 100
    demand = demand_of(spec(Gqa(4, 2, 8), tied=True), [layout(2, 8)], 1000)
    assert demand.flops_per_token == 2 * 2 * (around + mlp)
    assert demand.flops_per_sample == 2 * embedding
    assert demand.weight_bytes == 1000
    assert demand.attention_flops == (Scan(2 * 4 * 4 * 8),)
    assert demand.kv_bytes == (Scan(2 * 2 * 2 * 8 * 2),)
    chunk = [row(5, 3, samples=False), row(0, 2)]
    pairs = (6 + 7 + 8) + (1 + 2)
    assert demand.prefill_flops(chunk) == 5 * demand.flops_per_token + demand.flops_per_sample + pairs * 256
    assert demand.kv_reads([row(9, 1), row(3, 4)]) == [10 * 128, 7 * 128]


def test_an_untied_embedding_is_not_read_by_decode() -> None:
    matrices = 2 * (32 * 64 + 32 * 32 + 3 * 32 * 48)
    demand = demand_of(spec(Gqa(4, 2, 8), tied=False), [layout(2, 8)], 10**6)
    assert demand.weight_bytes == 10**6 * (matrices + 3200) // (matrices + 6400)


def test_a_latent_attention_by_hand() -> None:
    mla = Mla(heads=2, q_lora_rank=6, kv_lora_rank=10, nope_dim=8, rope_dim=4, value_dim=5)
    around = 6 * (32 + 2 * 12) + 32 * (10 + 4) + 10 * 2 * (8 + 5) + 2 * 5 * 32
    demand = demand_of(spec(mla, tied=True), [layout(1, 7)], 1)
    assert demand.flops_per_token == 2 * 2 * (around + 3 * 32 * 48)
    assert demand.attention_flops == (Scan(2 * 2 * 2 * (8 + 4 + 5)),)
    plain = demand_of(spec(Mla(2, None, 10, 8, 4, 5), tied=True), [layout(1, 7)], 1)
    assert plain.flops_per_token - demand.flops_per_token == 2 * 2 * (32 * 24 - 6 * (32 + 24))


def test_windowed_layers_read_their_window() -> None:
    demand = demand_of(
        spec(Gqa(4, 2, 8), tied=True), [layout(2, 8, layers=(0,)), layout(2, 8, window=4, layers=(1,))], 1
    )
    assert demand.kv_reads([row(99, 1), row(1, 1)]) == [64 * (100 + 4), 64 * (2 + 2)]


ROWS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60), st.sampled_from("abc")), min_size=1, max_size=20)


@given(ROWS, st.floats(1e-6, 10), st.integers(0, 10**9))
def test_all_of_a_step_is_charged_and_nothing_more(
    rows: list[tuple[int, int, str]], seconds: float, weight_bytes: int
) -> None:
    plan = [row(*values) for values in rows]
    prefill = by_tokens(plan, seconds)
    decode = by_bytes(plan, Demand(kv_bytes=(Scan(7.0),)).kv_reads(plan), weight_bytes, seconds)
    for charged in (prefill, decode):
        assert set(charged) == {request for _, _, request in rows}
        assert sum(charged.values()) == pytest.approx(seconds)
        assert min(charged.values()) > 0


def test_decode_by_hand() -> None:
    """600 bytes of weights over 3 rows, KV of 100, 100 and 200 bytes: a tenth of a second a hundred bytes."""
    rows = [row(0, 1, "a"), row(0, 1, "b"), row(0, 1, "a")]
    assert by_bytes(rows, [100.0, 100.0, 200.0], 600, 1.0) == pytest.approx({"a": 0.7, "b": 0.3})
    assert by_bytes(rows, [0.0, 0.0, 0.0], 0, 3.0) == pytest.approx({"a": 2.0, "b": 1.0})
    assert by_bytes([], [], 600, 0.0) == {}


def test_prefill_by_hand() -> None:
    assert by_tokens([row(0, 30, "a"), row(7, 10, "b")], 0.8) == pytest.approx({"a": 0.6, "b": 0.2})
    assert by_tokens([], 0.0) == {}


def test_every_step_of_an_engine_is_charged_to_those_in_it() -> None:
    """Chunks, several choices, preemption and an abort: what steps took is what their requests are charged."""
    rig = Rig(blocks=14, chunk=8, budget=16, batch=4)
    rig.submit("long", list(range(1, 30)), 9)
    rig.submit("twice", [3, 4, 5], 12, n=2)
    rig.submit("gone", [7] * 9, 30)
    for step in range(400):
        if step == 6:
            rig.engine.abort("gone")
        if not rig.engine.has_work:
            break
        rig.step()
    assert rig.scheduler.journal.num_preemptions
    charged: dict[str, float] = {}
    for report in rig.reports:
        stats, charges = report.stats, report.charges
        assert sum(charges.prefill.values()) == pytest.approx(stats.prefill_s)
        assert sum(charges.decode.values()) == pytest.approx(stats.decode_s)
        assert bool(charges.prefill) == bool(stats.prefill_tokens)
        for part in (charges.prefill, charges.decode):
            for key, seconds in part.items():
                charged[key] = charged.get(key, 0.0) + seconds
    assert set(charged) == {"long", "twice", "gone"}
    assert all(charged.values())
