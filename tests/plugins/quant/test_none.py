"""The baseline quantizer keeps what the checkpoint stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inferd.load.checkpoint import open_checkpoint
from inferd.plugin.types import Accept, ProbeContext, Reject, TensorMeta
from inferd_plugins.quant.none import NoQuantizer
from tests.tiny import Tiny, tiny_llama, weights

QUANTIZER = NoQuantizer()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_tensor_comes_back(tmp_path: Path, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_llama(tmp_path, dtype=dtype, layers=1))
    for name, tensor in weights(Tiny(layers=1)).items():
        meta = checkpoint.tensors()[name]
        assert QUANTIZER.accepts(meta) == "dense"
        weight = QUANTIZER.pack(meta, checkpoint.read(name))
        assert weight.planes["weight"].dtype == getattr(torch, dtype)
        assert torch.equal(QUANTIZER.dequantize(weight), tensor.to(getattr(torch, dtype)).float())


def test_what_does_not_fit_its_meta_is_refused() -> None:
    meta = TensorMeta("w", (2, 3), "F16")
    for data in (torch.zeros(3, 2, dtype=torch.float16), torch.zeros(2, 3), torch.zeros(6, dtype=torch.float16)):
        with pytest.raises(ValueError, match=r"w: expected F16 of shape \(2, 3\)"):
            QUANTIZER.pack(meta, data)
    with pytest.raises(ValueError, match="w: I8 is not a plain float type"):
        QUANTIZER.pack(TensorMeta("w", (2, 3), "I8"), torch.zeros(2, 3, dtype=torch.int8))
    assert isinstance(QUANTIZER.accepts(TensorMeta("w", (2,), "F8_E4M3")), Reject)


def test_probe() -> None:
    plain = ProbeContext("llama", "cpu", "fp32", weight_types=frozenset({"F32", "BF16"}))
    assert isinstance(NoQuantizer.probe(plain), Accept)
    fp8 = ProbeContext("llama", "cpu", "fp32", weight_types=frozenset({"F8_E4M3", "I32"}))
    assert NoQuantizer.probe(fp8) == Reject(("F8_E4M3, I32 is not a plain float type",))
    assert NoQuantizer.probe(ProbeContext("llama", "cpu", "fp32", source="gguf")) == Reject(("reads safetensors only",))
