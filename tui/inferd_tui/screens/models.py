"""The models in the store and those loaded; load and unload them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferd_client.protocol import ModelInfo, ModelStatus
from inferd_tui.frame import Frame
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.table import Column, Table
from inferd_tui.plain import use_lines
from inferd_tui.screens.listing import Listing, Wanted
from inferd_tui.units import NA, number, short_size


class Models(Listing):
    """States are live; the list itself is asked for again when a model changes."""

    COMMAND = "models"
    COLUMNS = (
        Column("MODEL", 20, 3),
        Column("STATE", 15),
        Column("SIZE", 7, right=True),
        Column("QUANT", 8, 1),
        Column("CONTEXT", 9, right=True),
        Column("RUN", 5, right=True),
        Column("WAIT", 5, right=True),
        Column("RESTARTS", 9, right=True),
        Column("PROBLEM", 6, 3),
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("l", "load", "Load"), Binding("u", "unload", "Unload")]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._models: dict[str, ModelInfo] = {}
        self._live: dict[str, ModelStatus] = {}

    def take(self, values: Iterable[object]) -> None:
        self._models = {m.name: m for m in values if isinstance(m, ModelInfo)}

    def show(self, frame: Frame) -> None:
        super().show(frame)
        self._live = {m.name: m for m in frame.status.models} if frame.status is not None else {}
        for table in self.query(Table):
            table.show(self.rows())

    def rows(self) -> dict[str, tuple[str, ...]]:
        return {name: _cells(model, self._live.get(name)) for name, model in self._models.items()}

    def details(self, key: str | None) -> list[str]:
        model = self._models.get(key or "")
        if model is None:
            return ["no models"]
        live = self._live.get(model.name)
        found = [f"{model.name}: {model.path}", model.problem]
        if live is not None:
            found += [f"{live.state} {live.detail}", live.weights_note, *use_lines(live.utilisation)]
            found += [f"{name} = {value:,} ({live.shape_origin.get(name, '')})" for name, value in live.shape.items()]
        return [text for text in found if text.strip()]

    def action_load(self) -> None:
        self._want("load")

    def action_unload(self) -> None:
        self._want("unload")

    def _want(self, command: str) -> None:
        for table in self.query(Table):
            if table.selected is not None:
                self.post_message(Wanted(command, table.selected))


def _cells(model: ModelInfo, live: ModelStatus | None) -> tuple[str, ...]:
    return (
        f"{model.name}{' *' if model.default else ''}",
        _state(live) if live else "in store",
        short_size(model.bytes),
        model.quantization or NA,
        number(model.context),
        str(live.running) if live else NA,
        str(live.waiting) if live else NA,
        str(live.restarts) if live else NA,
        model.problem or (live.detail if live else ""),
    )


def _state(live: ModelStatus) -> str:
    return f"{live.state}, stalled" if live.stalled else live.state
