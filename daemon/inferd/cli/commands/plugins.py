"""`inferd plugins`: list, check, enable and disable plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.output import json_line, json_option, lines, note, rows
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.config.layers import Loaded
    from inferd.plugin.contracts import PluginSpec
    from inferd.plugin.manager import PluginManager
    from inferd_client.protocol import PluginInfo


@click.group()
def plugins() -> None:
    """List, check, enable and disable plugins."""


@plugins.command("list")
@click.option("--verbose", is_flag=True, help="Print whole tracebacks of failed plugins.")
@json_option
@pass_state
def list_(state: State, verbose: bool, as_json: bool) -> None:
    """List every plugin with its state, source and why it was not chosen.

    A daemon with a model says what it chose; otherwise the installed plugins are listed.
    """
    found = _of_daemon(state)
    if not found:
        found = tuple(_installed(_manager(state)))
    if as_json:
        json_line(found)
        return
    cells = [
        (p.kind, p.name, p.state, f"{p.source} {p.version}".strip(), p.api, p.exactness, _first_line(p.why))
        for p in found
    ]
    rows(("KIND", "NAME", "STATE", "SOURCE", "API", "EXACTNESS", "WHY"), cells)
    if verbose:
        lines(f"\n{p.name}:\n{p.why}" for p in found if p.state == "FAILED")


@plugins.command()
@click.argument("name", shell_complete=complete.plugins)
@json_option
@pass_state
def check(state: State, name: str, as_json: bool) -> None:
    """Run the conformance kit on the plugin NAME (or KIND.NAME). Exit code 1 when it fails."""
    from inferd.plugin.conformance import check as run_kit

    spec = _spec(_manager(state), name)
    report = run_kit(spec, options=state.loaded.config.plugin.get(spec.kind, {}).get(spec.name))
    if as_json:
        json_line({"kind": report.kind, "name": report.name, "ok": report.ok, "results": report.results})
    else:
        lines(str(report).splitlines())
    if not report.ok:
        raise CliError(f"{name} does not conform: {', '.join(report.failed)}")


@plugins.command()
@click.argument("name", shell_complete=complete.plugins)
@pass_state
def disable(state: State, name: str) -> None:
    """Leave out a plugin (KIND.NAME), an entry point or a whole distribution from now on."""
    _change(state, lambda names: [*(n for n in names if n != name), name])
    note(f"{name} is disabled from the daemon's next start")


@plugins.command()
@click.argument("name", shell_complete=complete.plugins)
@pass_state
def enable(state: State, name: str) -> None:
    """Undo `disable`."""
    if name not in state.loaded.config.plugins.disable:
        raise CliError(f"{name} is not disabled; `inferd config get plugins.disable` lists what is")
    _change(state, lambda names: [n for n in names if n != name])
    if name in _reloaded(state).config.plugins.disable:
        raise CliError(f"{name} is still disabled by another file; see: inferd config show --origin")
    note(f"{name} is enabled from the daemon's next start")


def _manager(state: State) -> PluginManager:
    from inferd.plugin.manager import PluginManager

    return PluginManager(state.loaded.config.plugins.disable).load()


def _of_daemon(state: State) -> tuple[PluginInfo, ...] | None:
    """Ask a running daemon; None when there is none."""
    from inferd.cli.connect import connect
    from inferd_client.errors import ConnectionFailed

    try:
        with connect(state) as client:
            return client.plugins()
    except ConnectionFailed:
        return None


def _installed(manager: PluginManager) -> Iterator[PluginInfo]:
    from inferd.plugin.listing import listing
    from inferd_client.protocol import PluginInfo

    for row in listing(manager):
        yield PluginInfo(**row._asdict())


def _spec(manager: PluginManager, name: str) -> PluginSpec:
    """Find NAME or KIND.NAME among all kinds. Raises CliError with nearest names, or when it is ambiguous."""
    from inferd.plugin.errors import nearest

    found = [e for e in manager.entries if name in (e.spec.name, e.key)]
    if not found:
        known = [e.key if "." in name else e.spec.name for e in manager.entries]
        raise CliError(f"no plugin {name!r}{nearest(name, known)}; `inferd plugins list` shows all")
    if len(found) > 1:
        raise CliError(f"{name!r} names several plugins; say which: {', '.join(e.key for e in found)}")
    return found[0].spec


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _change(state: State, edit: Callable[[tuple[str, ...]], list[str]]) -> None:
    from inferd.config.edit import set_value

    set_value(state.user_file, "plugins.disable", edit(state.loaded.config.plugins.disable))


def _reloaded(state: State) -> Loaded:
    return State(state.config_path, state.settings, state.runtime).loaded
