"""Read the layers of settings, lowest first, and remember where each value came from.

packaged defaults < /etc/inferd/config.toml < /etc/inferd/config.d/*.toml < the user's config.toml
< `--config FILE` or INFERD_CONFIG < INFERD_LOG (the log level) < options of the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inferd.config.check import check, known_keys, leaves
from inferd.config.errors import ConfigError
from inferd.config.schema import Config

DEFAULT = "default"
COMMAND_LINE = "command line"
LOG_VARIABLE = "INFERD_LOG"
MAX_FILE = 1 << 20
"""Bytes a config file may have."""


class Loaded(NamedTuple):
    """The settings in force."""

    config: Config
    origins: dict[str, str]
    """Dotted key to the file (or `default`, `command line`) that set it."""
    files: tuple[Path, ...]
    """The files that were read, lowest layer first."""


class Locations(NamedTuple):
    """Where config files are looked for."""

    system: Path
    user: Path

    @classmethod
    def standard(cls) -> Locations:
        """Follow CONFIGURATION_DIRECTORY (systemd) and XDG_CONFIG_HOME."""
        system = os.environ.get("CONFIGURATION_DIRECTORY", "").split(":")[0] or "/etc/inferd"
        home = os.environ.get("XDG_CONFIG_HOME", "")
        base = Path(home) if home.startswith("/") else Path.home() / ".config"
        return cls(Path(system), base / "inferd" / "config.toml")


def load_config(
    config_path: Path | str | None = None,
    overrides: Mapping[str, Any] = {},
    *,
    locations: Locations | None = None,
) -> Loaded:
    """Merge all layers. `overrides` are dotted keys. Raises ConfigError naming file and key."""
    merged: dict[str, Any] = {}
    origins = dict.fromkeys(known_keys(), DEFAULT)
    files = tuple(_files(config_path, locations or Locations.standard()))
    layers = [(str(path), read_file(path)) for path in files]
    for source, values in [*layers, (LOG_VARIABLE, _log_level()), (COMMAND_LINE, nested(overrides))]:
        check(values, source)
        _merge(merged, values)
        origins.update((key, source) for key, _ in leaves(values))
    return Loaded(check(merged, "merged settings"), origins, files)


def read_file(path: Path) -> dict[str, Any]:
    """Parse one TOML file. Raises ConfigError naming it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ConfigError(f"{path}: larger than {MAX_FILE} bytes; this is no config file")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested tables. Raises ConfigError when one key is inside another."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, name = key.split(".")
        if not all((*tables, name)):
            raise ConfigError(f"{COMMAND_LINE}: `{key}` is not a key; write TABLE.KEY")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{COMMAND_LINE}: `{key}`: `{table}` is set to a value as well")
        node[name] = value
    return tree


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `KEY=VALUE`; VALUE is read as TOML, or as a plain string where that fails."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"`{text}`: write KEY=VALUE, e.g. engine.max_context=4096")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    return key.strip(), parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _files(config_path: Path | str | None, locations: Locations) -> Iterator[Path]:
    optional = [locations.system / "config.toml", *sorted((locations.system / "config.d").glob("*.toml"))]
    for path in [*optional, locations.user]:
        try:
            if path.is_file():
                yield path
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    named = config_path or os.environ.get("INFERD_CONFIG")
    if named:
        yield Path(named).expanduser()


def _log_level() -> dict[str, Any]:
    level = os.environ.get(LOG_VARIABLE, "")
    return {"log": {"level": level.lower()}} if level else {}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value
