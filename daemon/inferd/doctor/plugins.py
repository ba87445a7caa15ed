"""Plugins that failed, pins that name none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferd.doctor.finding import Finding, failure, ok, warning

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "plugins"


def check(what: Examined) -> Iterator[Finding]:
    from inferd.plugin.errors import UnknownPluginError
    from inferd.plugin.listing import listing
    from inferd.plugin.manager import PluginManager
    from inferd.plugin.types import KINDS

    pins = what.config.plugins
    manager = PluginManager(pins.disable).load()
    found = listing(manager)
    for plugin in found:
        if plugin.state in ("FAILED", "rejected"):
            why = next(
                (line for line in reversed(plugin.why.splitlines()) if line.strip()), "no reason was given"
            ).strip()
            remedy = f"mend or remove {plugin.source}, or: inferd plugins disable {plugin.name}"
            yield warning(TOPIC, f"{plugin.name} of {plugin.source} is left out: {why}", remedy)
    for kind in KINDS:
        name = getattr(pins, kind)
        try:
            if name:
                manager.find(kind, name)
        except UnknownPluginError as error:
            yield failure(TOPIC, f"plugins.{kind}: {error}", "inferd plugins list")
    yield ok(TOPIC, f"{sum(p.state == 'available' for p in found)} can be used")
