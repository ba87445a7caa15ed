"""A whole decoder on the GPU's linear kernels, norms and gates equals torch's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.linear import DenseLinear
from inferd_kernels.norms import gate_for, norm_for
from inferd_kernels.reference.forms import dequantize
from inferd_kernels.triton.gate import quantize_rows
from inferd_kernels.triton.linear import (
    GpuDenseLinear,
    GpuDequantizedLinear,
    GpuPacked4,
    GpuPacked8,
    GpuRounded8,
    gpu_kernels,
)
from inferd_plugins.attention.torch import TorchAttention
from inferd_plugins.quant.options import ChannelOptions
from inferd_plugins.quant.rtn import Fp8, Int4, Int8, RoundToNearest
from tests.kernels.triton.interpreted.test_gemm import weight4, weight8
from tests.model.harness import Steps, load
from tests.tiny import tiny_llama


def repr_of(quantizer: RoundToNearest) -> str:
    return f"{type(quantizer).__name__}-{quantizer.options.group}"


def dense(n: int, k: int) -> PackedWeight:
    values = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
    return PackedWeight("dense", (n, k), {"weight": values})


def fp8_groups(n: int, k: int, group: int) -> PackedWeight:
    weight = weight8("fp8", n, k, 0)
    return replace(weight, planes={"codes": weight.planes["codes"], "scales": torch.rand(n, k // group)})


WEIGHTS = {
    "dense": (dense(40, 128), GpuDenseLinear),
    "u4": (weight4(40, 128, 32, mins=True), GpuPacked4),
    "i8": (weight8("i8_group", 40, 128, 32), GpuPacked8),
    "i8 zero": (weight8("i8_group", 40, 128, 64, mins=True, zero=3), GpuPacked8),
    "channel": (weight8("i8_channel", 40, 128, 0), GpuRounded8),
    "fp8": (weight8("fp8", 40, 128, 0), GpuRounded8),
    "fp8 groups": (fp8_groups(40, 128, 64), GpuRounded8),
    "u4 tail": (weight4(40, 96, 32, mins=True), GpuPacked4),
    "u4 groups of 16": (weight4(40, 80, 16, mins=False), GpuPacked4),
    "groups of 8": (weight4(40, 128, 8, mins=True), GpuDequantizedLinear),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("added", ["", "bias", "residual", "bias residual out"])
def test_products_with_everything_added(name: str, added: str) -> None:
    weight, kind = WEIGHTS[name]
    kernel = gpu_kernels("cpu").choose(weight, "cpu", torch.float32)
    assert type(kernel) is kind
    x, bias, residual = torch.randn(5, weight.shape[1]), torch.randn(40), torch.randn(5, 40)
    rows = x
    if kernel.rounds_rows:
        quantized = quantize_rows(x, weight.planes["codes"].dtype)
        rows = quantized.codes.float() * quantized.scales.unsqueeze(1)
    want = rows @ dequantize(weight).t()
    want = want + bias if "bias" in added else want
    want = want + residual if "residual" in added else want
    wide = torch.zeros(5, 60)
    got = kernel.linear(
        x,
        kernel.prepare(weight, device="cpu", dtype=torch.float32),
        bias if "bias" in added else None,
        residual=residual if "residual" in added else None,
        out=wide[:, 10:50] if "out" in added else None,
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    if "out" in added:
        torch.testing.assert_close(wide[:, 10:50], want, rtol=1e-5, atol=1e-4)
        assert not wide[:, 50:].any()


@pytest.mark.parametrize("name", WEIGHTS)
def test_embedding_rows_of_every_form(name: str) -> None:
    weight, _ = WEIGHTS[name]
    kernel = gpu_kernels("cpu").choose(weight, "cpu", torch.float32)
    table = kernel.prepare_rows(weight, device="cpu")
    ids = torch.tensor([39, 0, 3], dtype=torch.int32)
    want = dequantize(weight)[ids.long()] * 2.0
    torch.testing.assert_close(kernel.rows(table, ids, torch.float32, 2.0), want)


def test_a_decoder_on_them_gives_the_same_logits(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m", layers=2)
    work = [("a", [3, 77, 12, 150, 9])]
    (want,) = Steps(load(path), TorchAttention()).run(work)
    (got,) = Steps(load(path, kernels=gpu_kernels("cpu")), TorchAttention()).run(work)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantizer", [Int4(), Int8(ChannelOptions(group=64)), Int8(), Fp8()], ids=repr_of)
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_decoder_gives_the_logits_of_its_dequantised_weights(
    tmp_path: Path, quantizer: RoundToNearest, tied: bool
) -> None:
    """Rows that are rounded to 8 bits move logits by little, but do move them."""
    path = tiny_llama(tmp_path / "m", layers=2, tied=tied, inner=128)
    work = [("a", [3, 77, 12, 150, 9])]
    (want,) = Steps(load(path, quantizer=quantizer), TorchAttention()).run(work)
    (plain,) = Steps(load(path), TorchAttention()).run(work)
    decoder = load(path, quantizer=quantizer, kernels=gpu_kernels("cpu"))
    (got,) = Steps(decoder, TorchAttention()).run(work)
    rounds = not isinstance(quantizer, Int4) and not quantizer.options.group
    assert bool(decoder.rounds_activations) == rounds
    assert float((want - plain).abs().max()) > 1e-3
    error = float((got - want).norm() / want.norm())
    # The interpreter cuts bits off where a GPU rounds to fp8.
    assert error < (0.25 if isinstance(quantizer, Fp8) else 0.08 if rounds else 1e-5)
    assert (error > 1e-4) == rounds
    dense = load(path, kernels=gpu_kernels("cpu")).weight_bytes
    assert decoder.weight_bytes < dense * (0.25 if isinstance(quantizer, Int4) else 0.32)


def test_norms_and_gates_of_device_rows() -> None:
    x, weight = torch.randn(3, 64), torch.rand(64)
    torch.testing.assert_close(norm_for("device rows")(x, weight, 1e-5), norm_for("plain")(x, weight, 1e-5))
    for activation in ("silu", "gelu", "gelu_tanh"):
        got, want = (gate_for(activation, kind)(x.clone()) for kind in ("device rows", "plain"))  # type: ignore[arg-type]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert DenseLinear.input_format == "plain"
