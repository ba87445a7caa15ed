"""What a model is, read from its header: enough for lists, and proof that the file is a model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from inferd.load.errors import LoadError
from inferd.load.gguf import GgufFile
from inferd.load.vocab_hf import read_json

FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}
"""`general.file_type` of GGUF: the type of most tensors."""


class Facts(NamedTuple):
    architecture: str = ""
    quantization: str = ""
    context: int | None = None
    license: str = ""


def describe(path: Path) -> Facts:
    """Read the facts of a GGUF file or a Hugging Face directory. Raises LoadError."""
    return _describe_folder(path) if path.is_dir() else _describe_gguf(path)


def _describe_gguf(path: Path) -> Facts:
    metadata = GgufFile(path).metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise LoadError(f"{path}: general.architecture is missing")
    context = metadata.get(f"{architecture}.context_length")
    kind = metadata.get("general.file_type")
    return Facts(
        architecture=architecture,
        quantization=FILE_TYPES.get(kind, "") if isinstance(kind, int) else "",
        context=context if isinstance(context, int) else None,
        license=str(metadata.get("general.license", "")),
    )


def _describe_folder(folder: Path) -> Facts:
    config = read_json(folder / "config.json")
    if not config:
        raise LoadError(f"{folder / 'config.json'}: missing or empty")
    context = config.get("max_position_embeddings")
    return Facts(
        architecture=str(config.get("model_type", "")),
        quantization=str(config.get("dtype") or config.get("torch_dtype") or ""),
        context=context if isinstance(context, int) else None,
    )
