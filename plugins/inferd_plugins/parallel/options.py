"""Options of the parallel strategies."""

from __future__ import annotations

import msgspec


class LayersOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[plugin.parallel.layers]`."""

    ranks: int = 2
    """Processes that share the layers; each holds a run of them of nearly equal length."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")
