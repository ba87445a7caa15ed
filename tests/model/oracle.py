"""Logits of transformers: batch 1, no padding, float32, eager attention."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


@lru_cache(maxsize=64)
def hf_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def hf_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    """Return [len(tokens), vocab]."""
    with torch.inference_mode():
        return hf_model(path)(torch.tensor([tokens]), use_cache=False).logits[0].float()
