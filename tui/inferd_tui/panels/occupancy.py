"""How full the batch is: requests by phase, slots and KV blocks, and how that went."""

from __future__ import annotations

from rich.text import Text

from inferd_client.protocol import StatusReply
from inferd_tui.frame import Frame, known_sum
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.panel import Panel, row
from inferd_tui.units import NA, number


class Occupancy(Panel):
    """All models together; the models screen has them apart."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        status, glyphs = frame.status, frame.glyphs
        if status is None:
            return [row(f"batch {NA}")]
        slots = known_sum(m.shape.get("max_sequences") for m in status.models)
        total = known_sum(m.kv_blocks_total for m in status.models)
        free = known_sum(m.kv_blocks_free for m in status.models)
        used = total - free if total is not None and free is not None else None
        return [
            row(_sum(status, "running"), _sum(status, "waiting"), _sum(status, "preempted")),
            row(
                _sum(status, "prefilling", "prefill"),
                _sum(status, "decoding", "decode"),
                _sum(status, "verifying", "verify"),
            ),
            _gauge("slots", occupied(status), slots, glyphs, width),
            _gauge("KV", used, total, glyphs, width),
            _strip(frame, width),
        ]


def occupied(status: StatusReply) -> int:
    """Requests in the batches of all models."""
    return sum(m.running for m in status.models)


def _strip(frame: Frame, width: int) -> Text:
    """Draw how many ran, against the most of the time shown."""
    space = max(0, width - 17)
    seen = frame.history.gauge(occupied)[-space:] if space else []
    most = max((value for value in seen if value is not None), default=0)
    return row("history ", (frame.glyphs.spark(seen, space), "cyan"), f" max {most:.0f}")


def _sum(status: StatusReply, field: str, label: str = "") -> str:
    value = sum(getattr(m, field) for m in status.models)
    return f"{(label or field):<7} {value if status.models else NA:<4}"


def _gauge(name: str, used: int | None, total: int | None, glyphs: Glyphs, width: int) -> Text:
    share = used / total if used is not None and total else None
    figures = f" {number(used)}/{number(total)}"
    percent = f" {100 * share:.0f}%" if share is not None else ""
    space = max(0, width - 8 - len(figures) - len(percent))
    style = "bold red" if share is not None and share > 0.95 else "cyan"
    return row(f"{name:<8}", (glyphs.bar(share, space), style), figures, percent)
