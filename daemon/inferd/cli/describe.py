"""What a model's files say of it, read from headers alone: no torch, no weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferd.load.checkpoint import open_checkpoint
from inferd.load.errors import LoadError
from inferd.load.gguf_types import BLOCK_TYPES
from inferd.load.vocab import open_vocabulary
from inferd.plugin.manager import PluginManager
from inferd.plugin.target import load_target

if TYPE_CHECKING:
    from inferd.load.checkpoint import Checkpoint
    from inferd.plugin.types import ModelSpec, TensorMeta

BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


def describe(path: Path, disable: Iterable[str] = ()) -> dict[str, Any]:
    """Collect the description of a model. Raises LoadError where the files are unsound."""
    checkpoint = open_checkpoint(path)
    try:
        found: dict[str, Any] = {
            "path": str(path),
            "format": checkpoint.source,
            "architecture": checkpoint.architecture_name,
            "bytes": checkpoint.nbytes,
            "parameters": sum(math.prod(t.shape) for t in checkpoint.tensors().values()),
            "quantization": histogram(checkpoint.tensors()),
        }
        found["model"], found["problem"] = _model(checkpoint, disable)
    finally:
        checkpoint.close()
    found["tokenizer"] = _tokenizer(path)
    return found


def histogram(tensors: Mapping[str, TensorMeta]) -> dict[str, dict[str, int]]:
    """Count tensors, values and bytes by storage type, the largest first."""
    counts: dict[str, Counter[str]] = {}
    for tensor in tensors.values():
        values = math.prod(tensor.shape)
        block = BLOCKS[tensor.dtype]
        entry = counts.setdefault(tensor.dtype, Counter())
        entry.update(tensors=1, values=values, bytes=values // block.values * block.bytes)
    return {name: dict(c) for name, c in sorted(counts.items(), key=lambda item: -item[1]["bytes"])}


def _model(checkpoint: Checkpoint, disable: Iterable[str]) -> tuple[dict[str, Any] | None, str]:
    """Return the model's sizes, or why no architecture plugin can read them."""
    try:
        entry = PluginManager(disable).load().find("architecture", checkpoint.architecture_name)
        spec = load_target(entry.spec)(None).spec(checkpoint.config())  # pyright: ignore[reportAttributeAccessIssue]
    except (ValueError, LookupError, ImportError) as error:
        return None, str(error)
    return _sizes(spec), ""


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    from inferd.plugin.types import Gqa

    first = spec.layers[0].attention
    sizes: dict[str, Any] = {
        "context": spec.trained_context,
        "layers": spec.num_layers,
        "hidden": spec.hidden_size,
        "inner": spec.layers[0].mlp.inner,
        "vocabulary": spec.vocab_size,
        "heads": first.heads,
    }
    if isinstance(first, Gqa):
        sizes |= {"kv_heads": first.kv_heads, "head_dim": first.head_dim, "window": first.window}
    ropes = {name: f"{rope.kind}, theta {rope.theta:g}" for name, rope in spec.ropes.items()}
    return {**sizes, "rope": ropes, "tied_embeddings": spec.tied_embeddings}


def _tokenizer(path: Path) -> dict[str, Any]:
    try:
        vocabulary = open_vocabulary(path)
    except LoadError as error:
        return {"problem": str(error)}
    return {
        "tokens": len(vocabulary.pieces),
        "eos_ids": list(vocabulary.eos_ids),
        "bos_id": vocabulary.bos_id,
        "add_bos": vocabulary.add_bos,
        "template": vocabulary.template,
    }
