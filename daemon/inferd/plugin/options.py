"""Check a plugin's own config table `[plugin.KIND.NAME]` against its options struct."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from inferd.plugin.errors import OptionsError, nearest

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec

OptionTables = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""kind -> name -> option -> value, as `Config.plugin` holds it."""


def parse_options(spec: PluginSpec, table: Mapping[str, Any]) -> msgspec.Struct | None:
    """Return the plugin's options, defaults filled in.

    Raises OptionsError naming the table and the key that is unknown, missing or of a wrong type.
    """
    where = f"[plugin.{spec.kind}.{spec.name}]"
    if spec.options is None:
        if table:
            raise OptionsError(f"{where} {next(iter(table))}: this plugin takes no options")
        return None
    known = [field.encode_name for field in msgspec.structs.fields(spec.options)]
    for key in table:
        if key not in known:
            raise OptionsError(f"{where} {key}: unknown option{nearest(key, known)}")
    try:
        return msgspec.convert(dict(table), spec.options)
    except msgspec.ValidationError as error:
        raise OptionsError(f"{where} {_located(str(error))}") from None


def options_hash(options: msgspec.Struct | None) -> str:
    """Return a digest of the option values, equal in every process that has the same ones."""
    plain = None if options is None else msgspec.to_builtins(options)
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def _located(message: str) -> str:
    """Turn `Expected int, got str - at $.chunk` into `chunk: Expected int, got str`."""
    text, mark, path = message.partition(" - at `$.")
    return f"{path.rstrip('`')}: {text}" if mark else text
