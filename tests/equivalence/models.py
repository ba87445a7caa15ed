"""The tiny models that the harnesses run: what differs between them is what a fault could hide in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.equivalence.oracle import Greedy, greedy
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen2, tiny_qwen3

NEW_TOKENS = 12
LENGTHS = (1, 3, 4, 5, 8, 17)
_A, _B, _C, _D = 21, 22, 23, 24
SHARED = [41, 42, 43, 44, 45, 46, 47, 48]
PROMPTS: tuple[list[int], ...] = (
    [7],
    [31, 9, 250],
    [60, 61, 62, 63],
    [5, 118, 6, 200, 7],
    SHARED,
    [*SHARED, _A, _B, _C, _A, _B, _C, _D, _A, _B],
)
"""The last begins with the one before it (two shared blocks) and repeats itself (n-grams)."""


@dataclass(frozen=True)
class Model:
    path: Path
    oracle_path: Path
    oracle: tuple[Greedy, ...]
    """Of PROMPTS."""


_WINDOWS = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
OPTIONS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (tiny_llama, {"rope_theta": 50.0}),
    "llama-wide-heads": (tiny_llama, {"hidden": 48, "heads": 6, "head_dim": 10, "attention_bias": True, "tied": True}),
    "llama-mha-shards": (
        tiny_llama,
        {"hidden": 56, "heads": 7, "kv_heads": 7, "head_dim": 6, "mlp_bias": True, "shards": 2},
    ),
    "qwen2": (tiny_qwen2, {"heads": 6, "kv_heads": 3, "head_dim": 14, "rope_theta": 1e6}),
    "qwen2-tied": (tiny_qwen2, {"heads": 4, "kv_heads": 1, "tied": True, "rope_theta": 200.0}),
    "qwen2-window": (tiny_qwen2, {"layers": 3, "config": _WINDOWS}),
    "qwen3": (tiny_qwen3, {"heads": 6, "kv_heads": 2, "head_dim": 16, "rope_theta": 100.0}),
    "gguf-llama": (tiny_llama, {"hidden": 48, "heads": 6, "head_dim": 12, "tied": True}),
    "gguf-qwen2": (tiny_qwen2, {"heads": 4, "kv_heads": 2}),
    "gguf-qwen3": (tiny_qwen3, {"heads": 4, "kv_heads": 1, "head_dim": 24, "tied": True}),
}


def make(folder: Path, name: str) -> Model:
    """Write a model and let the oracle decode the prompts."""
    write, options = OPTIONS[name]
    path = oracle_path = write(folder / name, **options)
    if name.startswith("gguf"):
        path = tiny_gguf(folder / f"{name}-file", arch=name.removeprefix("gguf-"), **options)
    return Model(path, oracle_path, tuple(greedy(oracle_path, prompt, NEW_TOKENS) for prompt in PROMPTS))
