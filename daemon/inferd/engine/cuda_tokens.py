"""Chosen tokens on their way from one step to the next, on the device, and to the host, without waiting there."""

from __future__ import annotations

from collections.abc import Callable

import torch


class DeviceTokens:
    """The token that each executor slot got last, and copies of chosen tokens that the device makes in its own time."""

    def __init__(self, slots: int, rows: int, depth: int, device: str) -> None:
        """`rows` are the most that one step chooses for, `depth` the most steps in flight."""
        on_gpu = device.startswith("cuda")
        self._last = torch.zeros(slots + 1, dtype=torch.int32, device=device)  # the last one for rows of padding
        self._copies = [torch.zeros(rows, dtype=torch.int64, pin_memory=on_gpu) for _ in range(depth)]
        self._events = [torch.cuda.Event() if on_gpu else None for _ in range(depth)]
        self._turn = 0

    def fill_in(self, token_ids: torch.Tensor) -> None:
        """Replace ids [T] int32 below 0 by the token that slot ~id got last, in place."""
        found = self._last.index_select(0, (~token_ids).clamp_(min=0))
        token_ids.copy_(torch.where(token_ids < 0, found, token_ids))

    def keep(self, ids: torch.Tensor, row_slots: torch.Tensor) -> None:
        """Remember the tokens [R] of these slots [R] int64. Of several rows of one slot any may be kept.

        A row without sound logits has -1, which no embedding holds: whatever follows it is dropped.
        """
        self._last.scatter_(0, row_slots, ids.clamp(min=0).to(torch.int32))

    def to_host(self, ids: torch.Tensor) -> Callable[[], list[int]]:
        """Start copying ids [R] to the host; the result waits for them. Good until `depth` more were started."""
        self._turn = (self._turn + 1) % len(self._copies)
        copy, event = self._copies[self._turn][: len(ids)], self._events[self._turn]
        copy.copy_(ids, non_blocking=True)
        if event is None:
            return copy.tolist
        event.record()

        def wait() -> list[int]:
            event.synchronize()
            return copy.tolist()

        return wait
