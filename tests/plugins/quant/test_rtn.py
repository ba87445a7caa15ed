"""Float checkpoints packed at load: codes are the nearest ones, in the forms and groups that were asked for."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
import torch

from inferd.plugin.types import Accept, ProbeContext, Reject, TensorMeta
from inferd_kernels.linear import default_kernels
from inferd_plugins.quant.options import ChannelOptions, GroupOptions
from inferd_plugins.quant.rtn import Fp8, Int4, Int8, RoundToNearest

META = TensorMeta("model.layers.0.mlp.up_proj.weight", (24, 192), "F32")


def values(seed: int = 0) -> torch.Tensor:
    return torch.randn(META.shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def test_int4_is_within_half_a_step_of_every_value() -> None:
    for group in (32, 64):
        packed = Int4(GroupOptions(group=group)).pack(META, values())
        assert (packed.form, packed.group) == ("u4_group", group)
        groups = values().view(24, -1, group)
        step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
        error = (Int4().dequantize(packed).view(groups.shape) - groups).abs()
        # Scales and minimums are rounded to bf16.
        assert (error <= step / 2 + groups.abs().amax(-1, keepdim=True) * 2**-7).all()
        assert float(error.max()) > float(step.min()) / 4


@pytest.mark.parametrize("group", [0, 32, 64])
def test_int8_is_within_half_a_step_of_every_value(group: Literal[0, 32, 64]) -> None:
    packed = Int8(ChannelOptions(group=group)).pack(META, values())
    assert (packed.form, packed.group) == ("i8_group" if group else "i8_channel", group)
    groups = values().view(24, -1, group or 192)
    step = groups.abs().amax(-1, keepdim=True) / 127
    assert ((Int8().dequantize(packed).view(groups.shape) - groups).abs() <= step * 0.501).all()
    assert int(packed.planes["codes"].abs().max()) == 127


@pytest.mark.parametrize("group", [0, 64])
def test_fp8_keeps_three_bits_of_every_value(group: Literal[0, 64]) -> None:
    packed = Fp8(ChannelOptions(group=group)).pack(META, values())
    assert packed.planes["scales"].shape == ((24, 3) if group else (24,))
    wide = values().view(24, -1, group or 192)
    smallest = wide.abs().amax(-1, keepdim=True) / 448 * 2**-9  # of what e4m3 can tell apart
    error = (Fp8().dequantize(packed).view(wide.shape) - wide).abs()
    assert (error <= wide.abs() * 2**-4 + smallest).all()
    assert float(packed.planes["codes"].float().abs().max()) == 448


def test_groups_shrink_to_divide_the_columns() -> None:
    assert Int4().packing(META).group == 64
    assert Int4().packing(META._replace(shape=(24, 256))).group == 128
    assert Int4().accepts(META._replace(shape=(24, 100))) == "dense"
    assert Int4().accepts(META._replace(shape=(24,))) == "dense"


def test_the_ends_of_a_model_keep_eight_bits() -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight", "token_embd.weight", "output.weight"):
        assert Int4().accepts(META._replace(name=name)) == "i8_group"
    assert Int4().accepts(META._replace(name="blk.0.attn_output.weight")) == "u4_group"


@pytest.mark.parametrize("kind", [Int4, Int8, Fp8])
def test_zeros_and_constants_come_back(kind: type[RoundToNearest]) -> None:
    data = torch.zeros(META.shape)
    data[3], data[4, :64] = 0.5, -2.0
    got = kind().dequantize(kind().pack(META, data))
    torch.testing.assert_close(got, data, rtol=0, atol=1e-3)


def test_only_float_checkpoints_are_packed() -> None:
    def context(types: set[str]) -> ProbeContext:
        return ProbeContext("llama", "cpu", "fp32", source="gguf", weight_types=frozenset(types))

    assert isinstance(Int4.probe(context({"F16", "BF16"})), Accept)
    verdict = Int4.probe(context({"F16", "Q4_0"}))
    assert isinstance(verdict, Reject)
    assert verdict.reasons == ("packs float weights, not Q4_0",)
    flat = values().half().view(torch.uint8).flatten()
    gguf = Int8().pack(META._replace(dtype="F16"), flat)
    assert torch.equal(gguf.planes["codes"], Int8().pack(META._replace(dtype="F16"), values().half()).planes["codes"])


def test_options_are_checked() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"group": 48}, GroupOptions)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"groups": 32}, ChannelOptions)


def test_native_kernels_take_the_integer_forms() -> None:
    kernels = default_kernels("auto")
    if kernels.missing:
        pytest.skip(kernels.missing)
    for quantizer in (Int4(), Int8(), Int8(ChannelOptions(group=64))):
        packed = quantizer.pack(META, values())
        kernel = kernels.choose(packed, "cpu", torch.float32)
        assert type(kernel).__name__ == "CpuPackedLinear"
        x = torch.randn(5, 192)
        got = kernel.linear(x, kernel.prepare(packed, device="cpu", dtype=torch.float32))
        want = x @ Int4().dequantize(packed).t()
        assert float((got - want).abs().max()) <= 0.02 * float(want.abs().max())
        table = kernel.prepare_rows(packed, device="cpu")
        rows = kernel.rows(table, torch.tensor([23, 0], dtype=torch.int32), torch.float32)
        torch.testing.assert_close(rows, quantizer.dequantize(packed)[[23, 0]])
