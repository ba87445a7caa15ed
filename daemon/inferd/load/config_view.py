"""Strict, typed reading of a model's own configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from inferd.load.errors import LoadError
from inferd.plugin.types import TensorMeta

# The methods of the view are named after types; annotations below them need other names.
Key = str
Number = float
Source = Literal["hf", "gguf"]

_REQUIRED: Any = ...


class DictConfigView:
    """A view over parsed JSON or GGUF metadata; see `inferd.plugin.contracts.ConfigView`.

    A key that is absent or null gives the default, or LoadError without one; a value of another type
    is always an error that names file and key.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        source: Source,
        where: str,
        tensors: Mapping[str, TensorMeta],
        read_floats: Callable[[str], tuple[float, ...]],
    ) -> None:
        self.source: Source = source
        self._values = values
        self._where = where
        self._tensors = tensors
        self._read_floats = read_floats

    def raw(self, key: Key, default: Any = _REQUIRED) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise LoadError(f"{self._where}: {key} is missing")
        return default

    def int(self, key: Key, default: Any = _REQUIRED) -> Any:
        return self._typed(key, default, "an integer", lambda v: isinstance(v, int) and not isinstance(v, bool))

    def float(self, key: Key, default: Any = _REQUIRED) -> Any:
        value = self._typed(key, default, "a number", _is_number)
        return value if value is default or value is None else value * 1.0

    def bool(self, key: Key, default: Any = _REQUIRED) -> Any:
        return self._typed(key, default, "true or false", lambda v: isinstance(v, bool))

    def str(self, key: Key, default: Any = _REQUIRED) -> Any:
        return self._typed(key, default, "a string", lambda v: isinstance(v, str))

    def table(self, key: Key, default: Any = _REQUIRED) -> Any:
        value = self._typed(key, default, "a table", lambda v: isinstance(v, Mapping))
        if not isinstance(value, Mapping):
            return value
        return DictConfigView(
            value,
            source=self.source,
            where=f"{self._where}: {key}",
            tensors=self._tensors,
            read_floats=self._read_floats,
        )

    def keys(self) -> list[Key]:
        return [key for key, value in self._values.items() if value is not None]

    def tensor(self, name: Key) -> TensorMeta | None:
        return self._tensors.get(name)

    def floats(self, name: Key) -> tuple[Number, ...]:
        return self._read_floats(name)

    def _typed(self, key: Key, default: Any, kind: Key, fits: Callable[[Any], Any]) -> Any:
        value = self.raw(key, default)
        if value is not default and not fits(value):
            raise LoadError(f"{self._where}: {key} must be {kind}, not {value!r:.80}")
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
