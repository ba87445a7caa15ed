"""What all panels are drawn from: the newest snapshot and what surrounds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferd_client.protocol import ModelStatus, StatusReply
from inferd_tui.glyphs import UNICODE, Glyphs
from inferd_tui.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One redraw. `status` is None until the first snapshot came."""

    status: StatusReply | None
    history: History
    glyphs: Glyphs = UNICODE
    lost: str = ""
    """Why no snapshots come; empty = they do."""
    paused: bool = False
    dropped: int = 0
    log: tuple[str, ...] = ()


def main_model(status: StatusReply) -> ModelStatus | None:
    """Return the model the header is about: the default one, else the first."""
    default = next((m for m in status.models if m.name == status.default_model), None)
    return default or next(iter(status.models), None)


def known_sum(values: Iterable[int | None]) -> int | None:
    """Add what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
