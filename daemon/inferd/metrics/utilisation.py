"""How much of what the machine can do at best was used of late: MFU of prefill, MBU of decode."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferd_client.protocol import Utilisation

if TYPE_CHECKING:
    from inferd.link import Ceilings, StepStats

WINDOW_S = 60.0
ENOUGH_S = 1.0


@dataclass(slots=True)
class _Second:
    """Sums over the steps of about one second."""

    begun: float
    flops: float = 0.0
    prefill_s: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    decode_s: float = 0.0


class UseWindow:
    """The last minute of one engine.

    MFU = operations of prefill rows over the time charged to prefill, against the measured rate of matrix
    products in the number format that is used. MBU = bytes of weights and KV that decode rows read, against
    the measured rate of reading; of steps without prefill alone, for the rest share their weight read with it.
    What was achieved can be done: where it is more than was measured, it is the ceiling.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seconds: deque[_Second] = deque()
        self._most_flops_s = 0.0
        """Achieved over at least a second of device time, as is the next: of less, the clock may deceive."""
        self._most_bytes_s = 0.0

    def add(self, stats: StepStats) -> None:
        if not self._seconds or stats.now - self._seconds[-1].begun >= 1.0:
            self._seconds.append(_Second(stats.now))
            self._forget(stats.now)
        second = self._seconds[-1]
        second.flops += stats.prefill_flops
        second.prefill_s += stats.prefill_s
        if not stats.prefill_tokens:
            second.weight_bytes += stats.weight_bytes
            second.kv_bytes += stats.kv_bytes
            second.decode_s += stats.decode_s

    def read(self, now: float, ceilings: Ceilings | None, number_format: str) -> Utilisation:
        """Return what was achieved; None where nothing ran or no ceiling is known."""
        self._forget(now)
        weights = sum(second.weight_bytes for second in self._seconds)
        kv = sum(second.kv_bytes for second in self._seconds)
        prefill_s, decode_s = (sum(getattr(s, name) for s in self._seconds) for name in ("prefill_s", "decode_s"))
        flops_s = _ratio(sum(s.flops for s in self._seconds), prefill_s)
        bytes_s = _ratio(weights + kv, decode_s)
        if flops_s and prefill_s >= ENOUGH_S:
            self._most_flops_s = max(self._most_flops_s, flops_s)
        if bytes_s and decode_s >= ENOUGH_S:
            self._most_bytes_s = max(self._most_bytes_s, bytes_s)
        most_flops = _ceiling(ceilings.flops.get(number_format) if ceilings else None, flops_s, self._most_flops_s)
        most_bytes = _ceiling(ceilings.read_bytes_s if ceilings else None, bytes_s, self._most_bytes_s)
        return Utilisation(
            prefill_flops_s=flops_s,
            flops_ceiling=most_flops,
            flops_format=number_format,
            mfu=_ratio(flops_s, most_flops),
            decode_bytes_s=bytes_s,
            bytes_ceiling=most_bytes,
            mbu=_ratio(bytes_s, most_bytes),
            weight_share=_ratio(weights, weights + kv),
        )

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0].begun < now - self._window_s:
            self._seconds.popleft()


def _ceiling(measured: float | None, *achieved: float | None) -> float | None:
    return max(measured, *(rate or 0.0 for rate in achieved)) if measured else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None
