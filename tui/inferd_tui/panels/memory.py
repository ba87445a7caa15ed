"""Where the memory of each device went. Parts that nobody reports read n/a."""

from __future__ import annotations

from rich.text import Text

from inferd_client.protocol import DeviceStatus, MemoryUse
from inferd_tui.frame import Frame
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.panel import Panel, row
from inferd_tui.plain import MEMORY
from inferd_tui.units import NA, short_size

PAIRS = (("weights", "process"), ("kv_used", "kv_free"), ("other", "activations"))


class Memory(Panel):
    """One device in full; of several, two lines each."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        status, glyphs = frame.status, frame.glyphs
        if status is None or not status.devices:
            return [row(f"memory {NA}")]
        if len(status.devices) == 1:
            return _full(status.devices[0], glyphs, width)
        lines = [line for device in status.devices for line in _brief(device, glyphs, width)]
        if len(lines) <= height:
            return lines
        shown = max(0, (height - 1) // 2)
        return [*lines[: 2 * shown], row(f"and {len(status.devices) - shown} devices more")]


def used_bytes(device: DeviceStatus) -> int | None:
    if device.total_bytes is None or device.free_bytes is None:
        return None
    return device.total_bytes - device.free_bytes


def shares(device: DeviceStatus) -> list[float]:
    """Return each part's share of all memory, in the order of the bar's marks."""
    total, memory = device.total_bytes, device.memory or MemoryUse()
    return [(getattr(memory, part) or 0) / total if total else 0.0 for part in MEMORY]


def _name(device: DeviceStatus) -> str:
    return f"{device.name} (system memory)" if device.name == "cpu" or device.unified else device.name


def _amount(device: DeviceStatus) -> str:
    return f"{short_size(used_bytes(device))} used of {short_size(device.total_bytes)}"


def _state(device: DeviceStatus) -> str:
    """Say what a GPU's sensors tell, or why they do not."""
    if device.problem:
        return f"  {device.problem}"
    busy = None if device.utilization is None else f"{100 * device.utilization:.0f}% busy"
    power = None if device.power_w is None else f"{device.power_w:.0f}W"
    heat = None if device.temperature_c is None else f"{device.temperature_c}C"
    return "".join(f"  {text}" for text in (busy, power, heat) if text)


def _brief(device: DeviceStatus, glyphs: Glyphs, width: int) -> list[Text]:
    return [
        row(glyphs.text(f"{_name(device)}: {_amount(device)}{_state(device)}")),
        row(glyphs.stack(shares(device), width)),
    ]


def _full(device: DeviceStatus, glyphs: Glyphs, width: int) -> list[Text]:
    memory = device.memory or MemoryUse()
    parts = {
        field: f"{mark} {label:<{_label_width(field)}} {short_size(getattr(memory, field))}"
        for mark, (field, label) in zip(glyphs.parts, MEMORY.items(), strict=True)
    }
    return [
        row(glyphs.text(f"{_name(device)} "), (_amount(device), "bold"), glyphs.text(_state(device))),
        row((glyphs.stack(shares(device), width), "cyan")),
        *(row(f"{parts[left]:<18}{parts[right]}") for left, right in PAIRS),
    ]


def _label_width(field: str) -> int:
    """Align the sizes of each column."""
    column = next(pair.index(field) for pair in PAIRS if field in pair)
    return max(len(MEMORY[pair[column]]) for pair in PAIRS)
