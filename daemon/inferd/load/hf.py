"""A folder in Hugging Face form as a checkpoint: config.json and safetensors, single or sharded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferd.load.checkpoint import Checkpoint
from inferd.load.config_view import DictConfigView
from inferd.load.errors import LoadError
from inferd.load.safetensors_header import DTYPE_BITS, read_header
from inferd.plugin.types import TensorMeta

if TYPE_CHECKING:
    import torch

    from inferd.load.vocab import TokenTable

MAX_JSON_BYTES = 64 << 20
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class HfCheckpoint(Checkpoint):
    """All headers are checked on opening, so a damaged shard is known before anything is loaded."""

    source = "hf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(path / "config.json")
        if "auto_map" in self._config:
            raise LoadError(f"{path / 'config.json'}: auto_map: the model needs code of its own, which is never run")
        self._files, self._tensors = _locate(path)
        self._open: dict[Path, Any] = {}
        self.nbytes = sum(_nbytes(meta) for meta in self._tensors.values())
        self.architecture_name = self.config().str("model_type")

    def config(self) -> DictConfigView:
        return DictConfigView(
            self._config,
            source="hf",
            where=str(self.path / "config.json"),
            tensors=self._tensors,
            read_floats=lambda name: tuple(self.read(name).flatten().tolist()),
        )

    def tensors(self) -> Mapping[str, TensorMeta]:
        return self._tensors

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        if name not in self._files:
            raise LoadError(f"{self.path}: tensor {name} is missing")
        file = self._files[name]
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt")
            return self._open[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{file}: tensor {name}: {error}") from None

    def token_table(self) -> TokenTable:
        from inferd.load.vocab_hf import hf_vocabulary

        return hf_vocabulary(self.path).table

    def close(self) -> None:
        self._open.clear()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size. Raises LoadError naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path}: larger than {MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LoadError(f"{path}: no such file; a model folder needs it") from None
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise LoadError(f"{path}: must be a JSON object")
    return content


def _locate(path: Path) -> tuple[dict[str, Path], dict[str, TensorMeta]]:
    """Return the file and the meta of every tensor."""
    if (path / SINGLE).is_file():
        metas = read_header(path / SINGLE)
        return dict.fromkeys(metas, path / SINGLE), metas
    if (path / INDEX).is_file():
        return _locate_sharded(path)
    hint = "; pickled weights (.bin, .pt) can run code and are not read" if any(path.glob("*.bin")) else ""
    raise LoadError(f"{path}: neither {SINGLE} nor {INDEX} is there{hint}")


def _locate_sharded(path: Path) -> tuple[dict[str, Path], dict[str, TensorMeta]]:
    weight_map = _weight_map(path / INDEX)
    files: dict[str, Path] = {}
    metas: dict[str, TensorMeta] = {}
    for shard in sorted(set(weight_map.values())):
        if not (path / shard).is_file():
            num = sum(owner == shard for owner in weight_map.values())
            raise LoadError(f"{path}: shard {shard} is missing ({num} tensors of {INDEX} are in it); download it again")
        for name, meta in read_header(path / shard).items():
            if weight_map.get(name) != shard:
                raise LoadError(f"{path / shard}: tensor {name} is not listed for this shard in {INDEX}")
            files[name], metas[name] = path / shard, meta
    for name, shard in weight_map.items():
        if name not in files:
            raise LoadError(f"{path / shard}: tensor {name} is listed in {INDEX} but absent")
    return files, metas


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> shard file name; a shard must lie beside the index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise LoadError(f"{index}: weight_map must be a table")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise LoadError(f"{index}: weight_map: {name}: {shard!r:.80} is no name of a safetensors file")
    return weight_map


def _nbytes(meta: TensorMeta) -> int:
    count = 1
    for n in meta.shape:
        count *= n
    return count * DTYPE_BITS[meta.dtype] // 8
