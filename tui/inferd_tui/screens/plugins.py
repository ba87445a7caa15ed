"""Every plugin the daemon knows: chosen or not, and why."""

from __future__ import annotations

from collections.abc import Iterable

from inferd_client.protocol import PluginInfo
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.table import Column
from inferd_tui.screens.listing import Listing


class Plugins(Listing):
    """The whole reason, or traceback, of the row under the cursor is below the table."""

    COMMAND = "plugins"
    COLUMNS = (
        Column("KIND", 13),
        Column("NAME", 13, 1),
        Column("STATE", 10),
        Column("EXACTNESS", 13),
        Column("FROM", 10, 1),
        Column("WHY", 20, 4),
    )

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._plugins: dict[str, PluginInfo] = {}

    def take(self, values: Iterable[object]) -> None:
        self._plugins = {f"{p.kind} {p.name} {p.source}": p for p in values if isinstance(p, PluginInfo)}

    def rows(self) -> dict[str, tuple[str, ...]]:
        return {
            key: (p.kind, p.name, p.state, p.exactness, p.source, p.why.strip().rsplit("\n", 1)[-1])
            for key, p in self._plugins.items()
        }

    def details(self, key: str | None) -> list[str]:
        plugin = self._plugins.get(key or "")
        if plugin is None:
            return ["no plugins"]
        head = f"{plugin.kind} {plugin.name}: {plugin.state}, {plugin.source} {plugin.version}, {plugin.target}"
        return [head, *plugin.why.splitlines()]
