"""Where the memory of each device went. Parts that nobody reports read n/a."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from inferd_client.protocol import DeviceStatus, StatusReply
from inferd_tui.frame import Frame, known_sum
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.panel import Panel, row
from inferd_tui.units import NA, short_size


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes of one device; None = not known."""

    total: int | None
    free: int | None
    weights: int | None
    kv_used: int | None
    kv_free: int | None
    process: int | None
    """Granted to engines beyond weights and KV pool; activations are inside it."""

    @property
    def used(self) -> int | None:
        return None if self.total is None or self.free is None else self.total - self.free

    @property
    def others(self) -> int | None:
        """What is used and not ours; not known while granted memory is not touched yet."""
        if self.used is None:
            return None
        rest = self.used - sum(part or 0 for part in (self.weights, self.kv_used, self.kv_free, self.process))
        return rest if rest >= 0 else None

    @property
    def shares(self) -> list[float]:
        """Of the total, in the order of the bar's marks."""
        parts = (self.weights, self.kv_used, self.kv_free, self.process, self.others)
        return [(part or 0) / self.total if self.total else 0.0 for part in parts]


class Memory(Panel):
    """One device in full; of several, two lines each."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        status, glyphs = frame.status, frame.glyphs
        if status is None or not status.devices:
            return [row(f"memory {NA}")]
        if len(status.devices) == 1:
            return _full(status, status.devices[0], glyphs, width)
        lines = [line for device in status.devices for line in _brief(status, device, glyphs, width)]
        if len(lines) <= height:
            return lines
        shown = max(0, (height - 1) // 2)
        return [*lines[: 2 * shown], row(f"and {len(status.devices) - shown} devices more")]


def split(status: StatusReply, device: DeviceStatus) -> Split:
    """Add up what the models on a device hold."""
    models = [m for m in status.models if (m.device or "").startswith(device.name)]
    weights, pool = known_sum(m.weight_bytes for m in models), known_sum(m.kv_bytes for m in models)
    shares = [
        int(m.kv_bytes * (m.kv_blocks_total - m.kv_blocks_free) / m.kv_blocks_total)
        for m in models
        if m.kv_bytes is not None and m.kv_blocks_total and m.kv_blocks_free is not None
    ]
    used = sum(shares) if shares else None
    granted = sum(entry.bytes for entry in device.ledger)
    process = granted - (weights or 0) - (pool or 0)
    return Split(
        total=device.total_bytes,
        free=device.free_bytes,
        weights=weights,
        kv_used=used,
        kv_free=pool - used if pool is not None and used is not None else None,
        process=process if granted and process >= 0 else None,
    )


def _name(device: DeviceStatus) -> str:
    return f"{device.name} (system memory)" if device.name == "cpu" or device.unified else device.name


def _amount(parts: Split) -> str:
    return f"{short_size(parts.used)} used of {short_size(parts.total)}"


def _brief(status: StatusReply, device: DeviceStatus, glyphs: Glyphs, width: int) -> list[Text]:
    parts = split(status, device)
    return [row(glyphs.text(f"{_name(device)}: {_amount(parts)}")), row(glyphs.stack(parts.shares, width))]


def _full(status: StatusReply, device: DeviceStatus, glyphs: Glyphs, width: int) -> list[Text]:
    parts = split(status, device)
    weights, used, free, process, others = glyphs.parts
    kv_free = parts.kv_free
    return [
        row(glyphs.text(f"{_name(device)} "), (_amount(parts), "bold")),
        row((glyphs.stack(parts.shares, width), "cyan")),
        row(f"{weights} weights {short_size(parts.weights):<6} {process} process {short_size(parts.process)}"),
        row(f"{used} KV used {short_size(parts.kv_used):<6} {free} KV free {short_size(kv_free)}"),
        row(f"{others} others  {short_size(parts.others):<6}   activations {NA}"),
    ]
