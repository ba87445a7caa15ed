"""The GGUF codecs, bit for bit against the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from inferd.load.checkpoint import open_checkpoint
from inferd.plugin.types import Accept, ProbeContext, Reject, TensorMeta
from inferd_plugins.quant.codecs import CODECS
from inferd_plugins.quant.gguf import GgufQuantizer
from inferd_plugins.quant.none import FLOATS
from tests.smollm2 import smollm2_path
from tests.tiny_gguf import encode

TYPES = [*FLOATS, *CODECS]
QUANTIZER = GgufQuantizer()


def reference(raw: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


def unpacked(raw: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    weight = QUANTIZER.pack(TensorMeta("x", shape, kind), torch.from_numpy(raw.view(np.uint8).reshape(-1).copy()))
    assert weight.shape == shape
    return QUANTIZER.dequantize(weight).numpy()


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Compare bits, so that a lost sign of zero shows; a NaN only has to be a NaN."""
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got.view(np.int32)[number], want.view(np.int32)[number])


def sizes(kind: str) -> tuple[int, int]:
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(kind: str, seed: int) -> None:
    """Every bit pattern, infinities and NaN scales included."""
    values, nbytes = sizes(kind)
    raw = np.random.default_rng(seed).integers(0, 256, (37, 3 * nbytes), dtype=np.uint8)
    want = reference(raw, kind).reshape(37, 3 * values)
    assert_same_bits(unpacked(raw, kind, want.shape), want)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(1, 256), (5, 512), (2, 3, 256), (256,), (1, 1, 1, 256)])
def test_encoded_values_of_awkward_shapes(kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    values = (rng.standard_normal(shape) * rng.choice([1e-6, 0.02, 30.0], shape)).astype(np.float32)
    values.reshape(-1)[:32] = 0.0
    raw = encode(values, kind)
    want = reference(raw, kind).reshape(shape)
    got = unpacked(raw, kind, shape)
    assert_same_bits(got, want)
    if not kind.endswith("_K"):
        assert np.abs(got - values).max() <= 0.2 * np.abs(values).max()


@pytest.mark.parametrize("kind", CODECS)
def test_runs_of_blocks_are_joined_in_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, nbytes = sizes(kind)
    raw = np.random.default_rng(1).integers(0, 100, (7, 2 * nbytes), dtype=np.uint8)
    shape = (7, 2 * values)
    whole = unpacked(raw, kind, shape)
    monkeypatch.setattr("inferd_plugins.quant.gguf.CHUNK_VALUES", 3 * values)
    monkeypatch.setattr("inferd_kernels.reference.forms.CHUNK_VALUES", values)
    assert_same_bits(unpacked(raw, kind, shape), whole)


@pytest.mark.parametrize("kind", CODECS)
def test_planes_have_the_layout_that_the_form_declares(kind: str) -> None:
    meta = TensorMeta("x", (3, 512), kind)
    codec = CODECS[kind]
    assert QUANTIZER.accepts(meta) == codec.form
    raw = torch.from_numpy(encode(np.random.default_rng(0).standard_normal(meta.shape), kind).reshape(-1).copy())
    weight = QUANTIZER.pack(meta, raw)
    packed = codec.form == "u4_group"
    assert weight.form == codec.form
    assert weight.planes["codes"].shape == (3, 256 if packed else 512)
    assert weight.planes["codes"].dtype == (torch.uint8 if packed else torch.int8)
    exact = torch.float32 if kind.endswith("_K") else torch.float16
    for name in weight.planes.keys() - {"codes"}:
        assert weight.planes[name].shape == (3, 512 // weight.group)
        assert weight.planes[name].dtype == exact
    assert all(plane.is_contiguous() for plane in weight.planes.values())
    assert ("mins" in weight.planes) == (kind in {"Q4_1", "Q5_1", "Q4_K", "Q5_K"})


def test_q4_1_stays_as_small_as_in_the_file() -> None:
    raw = torch.from_numpy(encode(np.random.default_rng(0).standard_normal((64, 64)), "Q4_1").reshape(-1).copy())
    assert QUANTIZER.pack(TensorMeta("x", (64, 64), "Q4_1"), raw).nbytes == raw.numel()


def test_packed_weights_do_not_hold_on_to_the_file() -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    weight = QUANTIZER.pack(TensorMeta("x", (16,), "F32"), raw)
    before = QUANTIZER.dequantize(weight).clone()
    raw.zero_()
    assert torch.equal(QUANTIZER.dequantize(weight), before)


def test_what_cannot_be_packed_says_why() -> None:
    odd, unknown = TensorMeta("w", (2, 48), "Q8_0"), TensorMeta("w", (2, 256), "IQ2_XS")
    for meta, reason in ((odd, "not whole Q8_0 blocks of 32"), (unknown, "cannot decode IQ2_XS")):
        verdict = QUANTIZER.accepts(meta)
        assert isinstance(verdict, Reject)
        assert reason in verdict.reasons[0]
        with pytest.raises(ValueError, match=f"w: .*{reason}"):
            QUANTIZER.pack(meta, torch.zeros(4, dtype=torch.uint8))
    for kind, nbytes in (("Q8_0", 2 * 2 * 34), ("F16", 2 * 64 * 2)):
        meta = TensorMeta("w", (2, 64), kind)
        for wrong in (nbytes - 1, nbytes + 34, 0):
            with pytest.raises(ValueError, match=f"w: {kind} of shape .* takes {nbytes} bytes, not {wrong}"):
                QUANTIZER.pack(meta, torch.zeros(wrong, dtype=torch.uint8))
        with pytest.raises(ValueError, match="expected flat uint8 bytes"):
            QUANTIZER.pack(meta, torch.zeros(2, 64))


def context(**changes: object) -> ProbeContext:
    fields = {"architecture_name": "llama", "device": "cpu", "dtype": "fp32", "source": "gguf", **changes}
    return ProbeContext(**fields)  # pyright: ignore[reportArgumentType]


def test_probe() -> None:
    assert isinstance(GgufQuantizer.probe(context(weight_types=frozenset(TYPES))), Accept)
    assert GgufQuantizer.probe(context(source="hf")) == Reject(("reads GGUF files only",))
    strange = GgufQuantizer.probe(context(weight_types=frozenset({"Q4_0", "IQ1_S", "Q2_K"})))
    assert strange == Reject(("cannot decode IQ1_S, Q2_K",))


@pytest.mark.smollm2
def test_the_default_model_bit_for_bit() -> None:
    checkpoint = open_checkpoint(smollm2_path())
    for name, meta in checkpoint.tensors().items():
        raw = checkpoint.read(name)
        weight = QUANTIZER.pack(meta, raw)
        rows = raw.numpy().reshape(meta.shape[0] if len(meta.shape) > 1 else 1, -1)
        assert_same_bits(QUANTIZER.dequantize(weight).numpy(), reference(rows, meta.dtype).reshape(meta.shape))
    assert {meta.dtype for meta in checkpoint.tensors().values()} == {"Q4_1", "Q8_0", "F32"}
