"""`EngineShape`: the only source of sizes in an engine worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """Sizes an engine was built with; never changed after load."""

    max_context: int
    """Most tokens of one sequence."""
    max_sequences: int
    """Most sequences that run at once (executor slots)."""
    token_budget: int
    """Most tokens of one step over all sequences."""
    chunk: int
    """Most prompt tokens of one sequence in one step."""
    block_size: int
    num_blocks: int
    """KV blocks of each group."""
    max_draft: int = 0
    """Most draft tokens of one sequence in one step."""
    depth: int = 1
    """Steps in flight at once: 2 = the next one is planned and started while the device works."""
    device_reserve: int = 0
    """Bytes of a GPU left to others."""
    threads: int = 0
    """Threads that compute on the host; 0 = another device does."""
    buckets: tuple[int, ...] = ()
    """Row counts that steps are captured for."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """Where each size came from: `config`, `model`, `memory grant`, `default`, ..."""

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest block table."""
        return -(-self.max_context // self.block_size)
