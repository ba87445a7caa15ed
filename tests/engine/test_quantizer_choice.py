"""Weights are packed into other values only when a quantizer that does so is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.assembly import Assembly, assemble
from inferd.engine.settings import WorkerSettings
from inferd.plugin.types import Kind
from inferd_plugins.quant.specs import PLUGINS
from tests.tiny import tiny_gguf, tiny_llama

QUANTIZER: Kind = "quantizer"
PACKERS = [spec.name for spec in PLUGINS if spec.exactness == "approximate"]


def assembled(path: Path, named: str = "") -> Assembly:
    config = Config(engine=Engine(max_context=64, max_sequences=2), plugins=Plugins(quantizer=named))
    return assemble(WorkerSettings(name="m", path=str(path), config=config))


def forms(made: Assembly) -> set[object]:
    """Return the forms of all matrices."""
    metas = made.checkpoint.tensors().values()
    return {made.resolution.quantizer.accepts(meta) for meta in metas if len(meta.shape) > 1}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "safetensors"])
def test_float_files_stay_float_unless_a_packer_is_named(kind: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m") if kind == "safetensors" else tiny_gguf(tmp_path, quant=kind)
    made = assembled(path)
    assert made.resolution.names[QUANTIZER] == ("none" if kind == "safetensors" else "gguf")
    assert forms(made) == {"dense"}
    assert made.resolution.choices[QUANTIZER].spec.exactness == "bit"
    assert len(PACKERS) == 3
    for name in PACKERS:
        packed = assembled(path, name)
        assert packed.resolution.names[QUANTIZER] == name
        assert "dense" not in forms(packed)
        assert packed.resolution.exactness.level == "approximate"
