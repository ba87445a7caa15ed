"""Two lines on top: the daemon and its model; the plugins it chose and what they promise."""

from __future__ import annotations

from rich.text import Text

from inferd_client.protocol import ModelStatus, StatusReply
from inferd_tui.frame import Frame, main_model
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.panel import Panel, row
from inferd_tui.units import NA, seconds

SHOWN_FIRST = ("attention", "kv", "draft", "quantizer", "parallel", "architecture")
GAP = "  "


class Header(Panel):
    """Identity of what is watched."""

    DEFAULT_CSS = """
    Header { height: 2; border: none; background: $boost; }
    """

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        status = frame.status
        if status is None:
            return [row(("inferd", "bold"), "  waiting for the first snapshot")]
        model = main_model(status)
        glyphs = frame.glyphs
        pause = (("PAUSED", "reverse"), " ") if frame.paused else ()
        first = row(*pause, ("inferd ", "bold"), glyphs.text(_daemon(status)), GAP, *_model(model, glyphs))
        return [first, row(glyphs.text(_promise(model)) if model else "no model is loaded")]


def _daemon(status: StatusReply) -> str:
    clients = "client" if status.clients == 1 else "clients"
    return f"{status.version} {status.state}{GAP}up {seconds(status.uptime_s)}{GAP}{status.clients} {clients}"


def _model(model: ModelStatus | None, glyphs: Glyphs) -> tuple[str | tuple[str, str], ...]:
    if model is None:
        return ()
    device = f"{model.device or NA} {model.dtype or NA}"
    return (
        glyphs.text(device),
        GAP,
        (glyphs.text(model.name), "bold"),
        f" {model.state}{', STALLED' if model.stalled else ''}",
    )


def _promise(model: ModelStatus) -> str:
    by = f" (lowered by {model.exactness_by})" if model.exactness_by else ""
    chosen = sorted(model.plugins.items(), key=lambda item: _place(item[0]))
    plugins = GAP.join(f"{kind} {name}" for kind, name in chosen) or f"plugins {NA}"
    return f"exactness {model.exactness or NA}{by}{GAP}{plugins}"


def _place(kind: str) -> tuple[int, str]:
    return (SHOWN_FIRST.index(kind) if kind in SHOWN_FIRST else len(SHOWN_FIRST), kind)
