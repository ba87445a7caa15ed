"""Check one layer of settings against the schema, and say precisely what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from inferd.config.errors import ConfigError
from inferd.config.schema import Config
from inferd.plugin.types import KINDS

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MAPS = {"models", "plugin"}
"""Tables whose keys are names the user chooses."""


def check(values: dict[str, Any], source: str) -> Config:
    """Validate one layer on its own. Raises ConfigError naming `source` and the key."""
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error), values)}") from None
    for kind in config.plugin:
        if kind not in KINDS:
            raise ConfigError(f"{source}: unknown key `plugin.{kind}`; kinds of plugins: {', '.join(KINDS)}")
    for name in config.models:
        try:
            config.for_model(name)
        except ValueError as error:
            table, _, text = str(error).partition(": ")
            raise ConfigError(f"{source}: {_explain_under(table, text)}") from None
    return config


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every setting in nested tables."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def known_keys(table: type[msgspec.Struct] = Config, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting of the schema; tables of free names are skipped."""
    for item in msgspec.structs.fields(table):
        if isinstance(item.type, type) and issubclass(item.type, msgspec.Struct):
            yield from known_keys(item.type, f"{prefix}{item.name}.")
        elif f"{prefix}{item.name}" not in _MAPS:
            yield f"{prefix}{item.name}"


def nearest(key: str) -> str:
    """Return ` (did you mean ...?)` when a known key or table is close to `key`, else an empty string."""
    known = list(known_keys())
    known += sorted({key.rpartition(".")[0] for key in known} - {""})
    last = key.rsplit(".", 1)[-1]
    close = difflib.get_close_matches(key, known, 1, 0.75)
    close = close or [k for k in known if k.rsplit(".", 1)[-1] == last][:1]
    close = close or [k for k in known if difflib.SequenceMatcher(None, k.rsplit(".", 1)[-1], last).ratio() > 0.75][:1]
    return f" (did you mean `{close[0]}`?)" if close else ""


def _explain(text: str, values: dict[str, Any]) -> str:
    """Turn a msgspec message into one that starts with the dotted key."""
    found = _PATH.search(text)
    path = _real_names(found["path"], values) if found else ""
    return _explain_under(path, _PATH.sub("", text))


def _explain_under(path: str, text: str) -> str:
    found = _PATH.search(text)
    if found:
        path, text = ".".join(filter(None, (path, found["path"]))), _PATH.sub("", text)
    unknown = _UNKNOWN.match(text)
    if unknown:
        key = ".".join(filter(None, (path, unknown["name"])))
        return f"unknown key `{key}`{nearest(key)}"
    if text.startswith("Invalid enum value"):
        text += f"; one of: {', '.join(map(str, _choices(path)))}"
    return f"`{path}`: {text[:1].lower()}{text[1:].replace('`object`', 'a table')}"


def _choices(path: str) -> tuple[Any, ...]:
    """Return the values a setting may take, if it is a choice."""
    table, _, name = path.rpartition(".")
    node: Any = Config
    for part in [table.rsplit(".", 1)[-1]] if table else []:
        node = get_type_hints(node).get(part, Config)
    hint = get_type_hints(node).get(name)
    return get_args(hint) if get_origin(hint) is Literal else ()


def _real_names(path: str, values: dict[str, Any]) -> str:
    """Replace the `[...]` by which msgspec names a key of a free table with the offending key."""
    if "[...]" not in path:
        return path
    head, _, tail = path.partition("[...]")
    for name, value in values.get(head, {}).items():
        try:
            msgspec.convert({head: {name: value}}, Config)
        except msgspec.ValidationError:
            if tail.startswith("[...]"):
                bad = next((k for k, v in value.items() if not isinstance(v, dict)), "*")
                tail = f".{bad}{tail.removeprefix('[...]')}"
            return f"{head}.{name}{tail}"
    return path
