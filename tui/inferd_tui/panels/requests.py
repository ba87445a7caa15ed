"""The unfinished requests: where each stands, and why it waits."""

from __future__ import annotations

from textual.reactive import reactive

from inferd_client.protocol import RequestStatus
from inferd_tui.frame import Frame
from inferd_tui.panels.table import Column, Table
from inferd_tui.units import number, seconds

COLUMNS = (
    Column("REQUEST", 12, 2),
    Column("CLIENT", 11, 2),
    Column("MODEL", 13, 2),
    Column("STATE", 12),
    Column("PROMPT", 7, right=True),
    Column("OUTPUT", 7, right=True),
    Column("AGE", 9, right=True),
    Column("WHY", 8, 4),
)
WHY = {
    "blocks": "no free KV blocks",
    "budget": "the step's token budget is used up",
    "slots": "all slots of the batch are taken",
    "priority": "others have a higher priority",
    "loading": "its model is being loaded",
    "grammar": "its grammar is being compiled",
    "sibling": "another choice of it computes the same prompt",
}
"""What the reasons mean; the help screen lists them too."""


class Requests(Table):
    """Oldest first."""

    frame: reactive[Frame | None] = reactive(None, repaint=False, always_update=True)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(COLUMNS, "requests", id=id)
        self._rows: dict[str, RequestStatus] = {}

    def watch_frame(self) -> None:
        if self.frame is None or self.frame.status is None:
            return
        self.glyphs = self.frame.glyphs
        self._rows = {f"{r.client} {r.id}": r for r in self.frame.status.requests}
        self.border_title = f"requests ({len(self._rows)})"
        self.show({key: _cells(request) for key, request in self._rows.items()})

    @property
    def chosen(self) -> RequestStatus | None:
        """The request under the cursor."""
        return self._rows.get(self.selected or "")


def _cells(request: RequestStatus) -> tuple[str, ...]:
    return (
        _fit(request.id, 11),
        request.client,
        request.model,
        _state(request),
        number(request.prompt_tokens),
        number(request.output_tokens),
        seconds(request.age_s),
        _why(request),
    )


def _fit(text: str, width: int) -> str:
    """Keep the end of long ids, which tells them apart."""
    return text if len(text) <= width else ".." + text[2 - width :]


def _state(request: RequestStatus) -> str:
    if request.state == "prefill" and request.prompt_tokens and request.done:
        return f"prefill {min(99, 100 * request.done // request.prompt_tokens)}%"
    return request.state


def _why(request: RequestStatus) -> str:
    waits = request.reason if request.state not in ("decode", "prefill") else ""
    given_way = f"gave way {request.preemptions}x" if request.preemptions else ""
    priority = f"priority {request.priority:+d}" if request.priority else ""
    return ", ".join(part for part in (waits, given_way, priority) if part)
