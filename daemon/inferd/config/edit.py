"""Change one setting of a TOML file and keep its comments and layout."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferd.config.check import check
from inferd.config.errors import ConfigError
from inferd.config.layers import COMMAND_LINE, nested

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def set_value(path: Path, key: str, value: Any) -> None:
    """Set a dotted key; the file is made when missing. Raises ConfigError and leaves it as it was."""
    check(nested({key: value}), COMMAND_LINE)
    document = _read(path)
    *tables, name = key.split(".")
    node: Any = document
    for table in tables:
        node = node.setdefault(table, {})
    node[name] = list(value) if isinstance(value, tuple) else value
    _write(path, document)


def unset_value(path: Path, key: str) -> bool:
    """Remove a dotted key; False when the file does not set it."""
    document = _read(path)
    *tables, name = key.split(".")
    node: Any = document
    for table in tables:
        node = node.get(table, {})
    if name not in node:
        return False
    del node[name]
    _write(path, document)
    return True


def _read(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if not path.exists():
        return tomlkit.document()
    try:
        return tomlkit.parse(path.read_text())
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _write(path: Path, document: TOMLDocument) -> None:
    """Check the new content and put it in place in one rename."""
    text = document.as_string()
    check(document.unwrap(), str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
