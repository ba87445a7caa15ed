"""Sizes follow config, then model, then memory, and a refusal carries the numbers."""

from typing import Any

import pytest

from inferd.config.schema import Engine
from inferd.engine.sizing import MemoryBudget, activation_bytes, choose_reserve, derive_shape, weight_bytes
from inferd.link import PROCESS_BYTES
from inferd.load.errors import LoadError
from inferd.plugin.types import DenseMlp, Gqa, KVGroup, KVLayout, KVPlane, LayerSpec, ModelSpec, RopeSpec, TensorMeta

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    layers=(LayerSpec(Gqa(4, 2, 16, scale=0.25), DenseMlp(128)),) * 2,
    ropes={"main": RopeSpec(1e4, 16)},
    norm_eps=1e-5,
    trained_context=2048,
    tied_embeddings=True,
)
GROUP = KVGroup((0, 1), (KVPlane("k", 2, 16), KVPlane("v", 2, 16)))
LAYOUT = KVLayout(GROUP, "fp32", 16)
BLOCK = 2 * 2 * 2 * 16 * 4 * 16  # layers, planes, heads, width, bytes, tokens
UNLIMITED = MemoryBudget(0, 0, 0)


def shape(config: Engine = Engine(), budget: MemoryBudget = UNLIMITED, **kwargs: Any):
    return derive_shape(config, SPEC, [LAYOUT], budget, **{"drafting": False, "on_host": True, **kwargs})


def grant(blocks: int) -> MemoryBudget:
    return MemoryBudget(PROCESS_BYTES + 100 + blocks * BLOCK, 60, 40)


def test_block_bytes_are_what_the_layout_says():
    assert LAYOUT.bytes_per_block == BLOCK


def test_defaults_come_from_the_model_and_cover_every_sequence():
    s = shape()
    assert (s.max_context, s.max_sequences, s.chunk, s.max_draft) == (2048, 64, 512, 0)
    assert s.num_blocks == 64 * 128
    assert s.origin["max_context"] == "model"
    assert s.token_budget >= s.max_sequences


def test_config_wins_and_is_named_as_origin():
    s = shape(Engine(max_context=512, max_sequences=4, chunk=32, token_budget=64, kv_blocks=40))
    assert (s.max_context, s.max_sequences, s.chunk, s.token_budget, s.num_blocks) == (512, 4, 32, 64, 40)
    assert {s.origin[k] for k in ("max_context", "max_sequences", "chunk", "token_budget", "num_blocks")} == {"config"}


def test_drafting_widens_the_budget():
    assert shape(Engine(max_draft=5, max_sequences=200), drafting=True).token_budget >= 200 * 6


def test_budget_below_one_step_of_decodes_is_refused():
    with pytest.raises(LoadError, match="token_budget 10 is below"):
        shape(Engine(token_budget=10, max_sequences=64))


def test_kv_bytes_are_turned_into_whole_blocks():
    assert shape(Engine(kv_bytes=130 * BLOCK + 5)).num_blocks == 130


def test_grant_limits_the_pool_and_then_the_context():
    assert shape(budget=grant(500)).num_blocks == 500
    small = shape(budget=grant(40))
    assert (small.num_blocks, small.max_context) == (40, 640)
    assert small.origin["max_context"].startswith("memory")


def test_explicit_context_that_does_not_fit_is_refused_with_what_would():
    with pytest.raises(LoadError, match=r"one sequence of 2048 tokens needs .*max_context to 640 or"):
        shape(Engine(max_context=2048), grant(40))


def test_nearly_no_room_is_refused():
    with pytest.raises(LoadError, match="MiB are left") as caught:
        shape(budget=MemoryBudget(PROCESS_BYTES, 60, 40))
    assert "max_context" not in str(caught.value), "no context is short enough"
    assert "further quantized" in str(caught.value)


def test_host_pool_is_capped_and_a_device_pool_is_not():
    wide = KVLayout(KVGroup((0, 1), (KVPlane("k", 64, 128), KVPlane("v", 64, 128))), "fp32", 16)
    host = derive_shape(Engine(), SPEC, [wide], UNLIMITED, drafting=False, on_host=True)
    assert host.num_blocks * wide.bytes_per_block <= 2 << 30
    device = derive_shape(Engine(), SPEC, [wide], MemoryBudget(1 << 36, 0, 0), drafting=False, on_host=False)
    assert device.num_blocks > host.num_blocks


def test_estimates():
    metas = [(TensorMeta("a", (10, 64), "Q4_1"), "u4_group"), (TensorMeta("b", (8,), "F32"), "dense")]
    half = (TensorMeta("c", (10, 4), "BF16"), "dense")
    assert weight_bytes(metas, "fp32", native=True) == 480 + 32
    assert weight_bytes([*metas, half], "fp32", native=True) == 480 + 32 + 80
    assert weight_bytes(metas, "fp32", native=False) == 640 * 4 + 32 + 480  # the rows of the table stay packed
    assert weight_bytes(metas, "bf16", native=False) == 640 * 2 + 32 + 480
    assert activation_bytes(8, 64, 128, 1000, 2) > 2 * 1000 * 4


def test_threads_are_those_of_the_host_unless_configured():
    assert (shape(cores=(6, "physical cores")).threads, shape(Engine(threads=3)).threads) == (6, 3)
    assert shape(cores=(6, "a CPU quota of 6")).origin["threads"] == "a CPU quota of 6"
    assert shape(on_host=False).threads == 0
    assert "threads" not in shape(on_host=False).origin


def test_what_libraries_keep_is_taken_before_the_pool():
    assert MemoryBudget(PROCESS_BYTES + 1000, 60, 40, 100).for_kv == 800


def test_a_desktop_keeps_more_of_its_gpu_than_a_headless_machine():
    gib = 1 << 30
    assert choose_reserve(3, 24 * gib, display=True) == (3, "config")
    desktop, why = choose_reserve(0, 24 * gib, display=True)
    assert (desktop, why) == (int(24 * gib * 0.08), "a display or graphics run on the GPU")
    headless, why = choose_reserve(0, 141 * gib, display=False)
    assert (headless, why) == (int(141 * gib * 0.02), "no display runs on the GPU")
    unknown, why = choose_reserve(0, 24 * gib, display=None)
    assert unknown == desktop
    assert "does not say" in why
    assert choose_reserve(0, 8 * gib, display=False)[0] == gib // 2
