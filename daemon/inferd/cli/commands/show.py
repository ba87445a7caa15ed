"""`inferd show`: describe a model from its header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.output import json_line, json_option, lines, note, rows
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd_client.protocol import ModelStatus


AS_STORED = "stored: kernels read the packed values"


@click.command()
@click.argument("model", required=False, shell_complete=complete.models_or_files)
@click.option("--template", is_flag=True, help="Print the chat template only.")
@click.option("--shape", is_flag=True, help="Print the engine sizes, each with its origin.")
@json_option
@pass_state
def show(state: State, model: str | None, template: bool, shape: bool, as_json: bool) -> None:
    """Describe MODEL (a name in the store, a .gguf file or a folder; default: the default model).

    Reads headers only. How the weights are computed on is known once the daemon has loaded it.
    """
    name = model or state.loaded.config.default_model
    if shape:
        _shape(state, name, as_json)
        return
    from inferd.cli.describe import describe

    path = state.resolve(name)
    found = describe(path, state.loaded.config.plugins.disable)
    if template:
        _template(name, found["tokenizer"], as_json)
        return
    running = _running(state, name, str(path))
    found["weights"] = running.weights_note or AS_STORED if running is not None and running.shape else None
    if as_json:
        json_line({"name": name, **found})
    else:
        lines(_text(name, found))


def _text(name: str, found: dict[str, Any]) -> Iterator[str]:
    from inferd_tui.units import number, size

    yield f"{name}: {found['architecture']}, {number(found['parameters'])} parameters, {size(found['bytes'])}"
    for key, value in _facts(found):
        yield f"  {key:16} {value}"
    for dtype, count in found["quantization"].items():
        yield f"  {dtype:16} {count['tensors']} tensors, {number(count['values'])} values, {size(count['bytes'])}"


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "path", f"{found['path']} ({found['format']})"
    if found["problem"]:
        yield "cannot load", found["problem"]
    yield "computed as", found["weights"] or "known once it is loaded"
    sizes = {
        **(found["model"] or {}),
        **{f"tokenizer {k}": v for k, v in found["tokenizer"].items() if k != "template"},
    }
    yield from ((key.replace("_", " "), _plain(value)) for key, value in sizes.items() if value is not None)
    yield "template", "yes (--template prints it)" if found["tokenizer"].get("template") else "none"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {v}" for k, v in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _template(name: str, tokenizer: dict[str, Any], as_json: bool) -> None:
    text = tokenizer.get("template")
    if as_json:
        json_line({"name": name, "template": text})
    elif text:
        lines([text])
    else:
        raise CliError(f"{name} has no chat template; set models.{name}.chat_template to a jinja file")


def _shape(state: State, name: str, as_json: bool) -> None:
    sizes, origins = _shape_of(state, name)
    if as_json:
        json_line({k: {"value": v, "origin": origins.get(k, "")} for k, v in sizes.items()})
    else:
        rows(("SIZE", "VALUE", "ORIGIN"), [(k, f"{v:,}", origins.get(k, "")) for k, v in sizes.items()])


def _shape_of(state: State, name: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return sizes and origins: of the running engine, else as a load would derive them here and now."""
    running = _running(state, name, _path(state, name))
    if running is not None and running.shape:
        return running.shape, running.shape_origin
    path = state.resolve(name)
    note(f"{name} is not loaded: computed from its files and the settings, without a memory grant")
    from inferd.engine.assembly import assemble
    from inferd.engine.build import SIZES
    from inferd.engine.settings import WorkerSettings

    shape = assemble(WorkerSettings(name=name, path=str(path), config=state.loaded.config.for_model(name))).shape
    return {size: getattr(shape, size) for size in SIZES}, dict(shape.origin)


def _path(state: State, name: str) -> str:
    from inferd.load.errors import LoadError

    try:
        return str(state.store.resolve(name))
    except LoadError:
        return ""


def _running(state: State, name: str, path: str) -> ModelStatus | None:
    """Ask a running daemon about the model; without one there is nothing to ask."""
    from inferd.cli.connect import connect
    from inferd_client.errors import InferdError

    try:
        with connect(state) as client:
            return next((m for m in client.status().models if m.name == name or m.path == path), None)
    except InferdError:
        return None
