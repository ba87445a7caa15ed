"""Installed distributions made of files: a module and a `.dist-info` with entry points."""

from __future__ import annotations

from pathlib import Path

HEAD = """\
from inferd.plugin.contracts import PluginSpec
from inferd.plugin.hookspecs import hookimpl
"""


def install(
    site: Path,
    distribution: str,
    modules: dict[str, str],
    entry_points: dict[str, str],
    *,
    version: str = "1.0",
) -> None:
    """Write a distribution into the folder `site`, as an installer would."""
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[inferd]", *lines, ""]))


def draft_module(name: str, *, target: str = "inferd_plugins.draft.none:NoDraft", spec: str = "") -> str:
    """Return the source of a module with one draft plugin; `spec` holds more arguments of its PluginSpec."""
    return f"""{HEAD}

@hookimpl
def inferd_draft_models():
    return [PluginSpec(name={name!r}, kind="draft", target={target!r}, {spec})]
"""
