"""`inferd ls`: the models in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from inferd.cli.output import json_line, json_option, note, rows
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd_client.protocol import ModelInfo


@click.command()
@json_option
@pass_state
def ls(state: State, as_json: bool) -> None:
    """List the models in the store; no daemon is needed.

    REPACKED is what their weights take a second time in the cache, in the order the CPU kernels read them.
    """
    from inferd.load.repack_cache import RepackCache
    from inferd_tui.units import number, size

    found = state.store.list()
    cache = RepackCache(state.paths.cache, 0)
    repacked = {m.name: cache.size_of(Path(m.path)) for m in found}
    if as_json:
        json_line([{**msgspec.to_builtins(m), "repacked_bytes": repacked[m.name]} for m in found])
        return
    if not found:
        note(f"no model in {state.paths.models}; get one: inferd pull smollm2-135m")
        return

    def kept(model: ModelInfo) -> str:
        return size(repacked[model.name]) if repacked[model.name] else ""

    cells = [
        (m.name, m.architecture, m.quantization, number(m.context), size(m.bytes), kept(m), m.problem) for m in found
    ]
    rows(("NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "SIZE", "REPACKED", "PROBLEM"), cells)
