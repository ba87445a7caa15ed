"""Name the types of the protocol's structs as clients/PROTOCOL.md does, for readers of any language."""

from __future__ import annotations

import enum
import json
import types
import typing
from typing import Any

import msgspec

from inferd_client import protocol as p

SIMPLE = {str: "string", int: "int", float: "float", bool: "bool", bytes: "bytes", Any: "any", type(None): "nil"}


def structs() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the protocol but the two bases, by name."""
    found = {name: getattr(p, name) for name in p.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in (p.Request, p.Reply)
    }


def wire_type(kind: Any) -> str:
    """`list of TokenLogprob or nil`, `map of string to float`, `one of user, admin`..."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(wire_type(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(args)
    if origin is dict:
        return f"map of {wire_type(args[0])} to {wire_type(args[1])}"
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        inner = wire_type(args[0])
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    if origin is tuple:
        return "[" + ", ".join(wire_type(arg) for arg in args) + "]"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct | enum.Enum):
        return kind.__name__
    raise TypeError(f"no name for {kind}")


def wire_default(field: msgspec.structs.FieldInfo) -> str:
    """`required`, or the default as JSON; a struct of defaults is `{}`."""
    if field.required:
        return "required"
    factory = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()  # type: ignore[operator]
    return json.dumps(msgspec.to_builtins(value)).replace("null", "nil")


def rows(kind: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    """Name, type and default of every field."""
    return [(f.name, wire_type(f.type), wire_default(f)) for f in msgspec.structs.fields(kind)]
