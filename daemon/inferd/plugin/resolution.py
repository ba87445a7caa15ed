"""The outcome of resolving: one plugin a kind, and why each other one was not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from inferd.plugin.exactness import Composed, compose

if TYPE_CHECKING:
    import msgspec

    from inferd.plugin.contracts import (
        Architecture,
        AttentionBackend,
        DraftModel,
        KVManager,
        ParallelStrategy,
        Plugin,
        PluginSpec,
        Quantizer,
    )
    from inferd.plugin.listing import Listed
    from inferd.plugin.loading import Failure
    from inferd.plugin.sources import Source
    from inferd.plugin.types import Kind, ModelSpec


class Rejected(NamedTuple):
    """A plugin that was not chosen."""

    kind: Kind
    name: str
    reasons: tuple[str, ...]

    @property
    def why(self) -> str:
        return "; ".join(self.reasons)


@dataclass(frozen=True)
class Choice:
    """A chosen plugin; `object` is built at first use and is then always the same one."""

    spec: PluginSpec
    source: Source
    cls: type[Plugin]
    options: msgspec.Struct | None
    pinned: bool = False
    note: str = ""
    """What the plugin said when it accepted."""

    @cached_property
    def object(self) -> Plugin:
        return self.cls(self.options)


@dataclass(frozen=True)
class Resolution:
    """The chosen plugins in order of resolution, and everything worth showing about the choice."""

    choices: Mapping[Kind, Choice]
    model: ModelSpec
    rejected: tuple[Rejected, ...] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """By `KIND.NAME`: plugins merely discovered whose target could not be imported or probed."""
    listing: tuple[Listed, ...] = ()
    """Every known plugin with its state, for `inferd plugins list`."""

    @cached_property
    def exactness(self) -> Composed:
        return compose(choice.spec for choice in self.choices.values())

    def why(self, kind: Kind, name: str) -> str:
        """Return why a plugin was not chosen; empty for one that was, or is not known."""
        return next((r.why for r in self.rejected if (r.kind, r.name) == (kind, name)), "")

    @property
    def names(self) -> dict[Kind, str]:
        """Pins that resolve to the same choice again, e.g. in a rank."""
        return {kind: choice.spec.name for kind, choice in self.choices.items()}

    def not_capture_safe(self, device: str) -> tuple[str, ...]:
        """Return the plugins on the device path that force eager steps on a device."""
        path: tuple[Kind, ...] = ("attention", "parallel")
        specs = [self.choices[kind].spec for kind in path]
        return tuple(f"{spec.kind} {spec.name}" for spec in specs if not _capture_safe(spec, device.split(":")[0]))

    @property
    def architecture(self) -> Architecture:
        return cast("Architecture", self.choices["architecture"].object)

    @property
    def parallel(self) -> ParallelStrategy:
        return cast("ParallelStrategy", self.choices["parallel"].object)

    @property
    def quantizer(self) -> Quantizer:
        return cast("Quantizer", self.choices["quantizer"].object)

    @property
    def kv(self) -> KVManager:
        return cast("KVManager", self.choices["kv"].object)

    @property
    def attention(self) -> AttentionBackend:
        return cast("AttentionBackend", self.choices["attention"].object)

    @property
    def draft(self) -> DraftModel:
        return cast("DraftModel", self.choices["draft"].object)


def _capture_safe(spec: PluginSpec, device: str) -> bool:
    can = spec.capabilities
    return can.capture_safe and (not can.capture_devices or device in can.capture_devices)
