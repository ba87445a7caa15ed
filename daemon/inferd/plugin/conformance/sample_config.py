"""Configurations of a small model for architecture checks, read as strictly as real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from inferd.plugin.types import TensorMeta

Source = Literal["hf", "gguf"]

HF: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 90,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2e-6,
    "rope_theta": 50000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Keys that nearly every decoder has, with values that no default gives."""

_GGUF = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def sample(architecture: str, source: Source) -> dict[str, Any]:
    """Return the kit's own configuration as a checkpoint of this source would hold it."""
    if source == "hf":
        return {"model_type": architecture, **HF}
    return {"general.architecture": architecture} | {f"{architecture}.{k}": HF[v] for k, v in _GGUF.items()}


def hf_key(architecture: str, key: str) -> str:
    """Return the Hugging Face name of a configuration key of either source."""
    return _GGUF.get(key.removeprefix(f"{architecture}."), key)


def tensors(
    values: Mapping[str, Any], architecture: str, source: Source, *, tied: bool = False
) -> dict[str, TensorMeta]:
    """Return the tensors at the ends of the model: the embedding and, unless tied, the output matrix."""
    named = {hf_key(architecture, k): v for k, v in values.items()}
    shape = (named.get("vocab_size", 90), named.get("hidden_size", 48))
    ends = {"hf": ("model.embed_tokens.weight", "lm_head.weight"), "gguf": ("token_embd.weight", "output.weight")}
    return {name: TensorMeta(name, shape, "F32") for name in ends[source][: 1 if tied else 2]}


class SampleConfig:
    """A `ConfigView` over a dict; a missing key or a wrong type is a ValueError that names the key."""

    def __init__(self, values: Mapping[str, Any], source: Source, tensors: Mapping[str, TensorMeta]) -> None:
        self.source: Source = source
        self._values = values
        self._tensors = tensors

    def raw(self, key: str, default: Any = ...) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is ...:
            raise ValueError(f"{key} is missing")
        return default

    def int(self, key: str, default: Any = ...) -> Any:
        return self._typed(key, default, lambda v: isinstance(v, int) and not isinstance(v, bool))

    def float(self, key: str, default: Any = ...) -> Any:
        value = self._typed(key, default, lambda v: isinstance(v, int | float) and not isinstance(v, bool))
        return value * 1.0 if self._values.get(key) is not None else value

    def bool(self, key: str, default: Any = ...) -> Any:
        return self._typed(key, default, lambda v: isinstance(v, bool))

    def str(self, key: str, default: Any = ...) -> Any:
        return self._typed(key, default, lambda v: isinstance(v, str))

    def table(self, key: str, default: Any = ...) -> Any:
        value = self._typed(key, default, lambda v: isinstance(v, Mapping))
        return SampleConfig(value, self.source, self._tensors) if isinstance(value, Mapping) else value

    def keys(self) -> list[Any]:
        return [key for key, value in self._values.items() if value is not None]

    def tensor(self, name: Any) -> TensorMeta | None:
        return self._tensors.get(name)

    def floats(self, name: Any) -> tuple[Any, ...]:
        raise ValueError(f"tensor {name} is missing")

    def _typed(self, key: Any, default: Any, fits: Callable[[Any], Any]) -> Any:
        value = self.raw(key, default)
        if self._values.get(key) is not None and not fits(value):
            raise ValueError(f"{key} has a wrong type: {value!r}")
        return value
