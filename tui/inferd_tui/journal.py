"""The lines of the log pane: what changed from one snapshot to the next, and what was told apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from inferd_client.protocol import ModelEvent, StatusReply

KEPT = 200
ERRORS = "inferd_request_error_total{"


class Journal:
    """Remembers the last lines, each with the time of day."""

    def __init__(self, clock: Callable[[], str]) -> None:
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._last: StatusReply | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def say(self, text: str) -> None:
        self._lines.append(f"{self._clock()} {text}")

    def model(self, event: ModelEvent) -> None:
        self.say(f"model {event.name}: {event.state}{_after(event.detail)}")

    def snapshot(self, status: StatusReply) -> None:
        """Note what is new against the last snapshot."""
        last, self._last = self._last, status
        if last is None:
            self.say(f"watching inferd {status.version}, pid {status.pid}, {status.state}")
        elif last.instance != status.instance:
            self.say(f"the daemon was started anew, pid {status.pid}")
            last = None
        elif last.state != status.state:
            self.say(f"the daemon is {status.state}")
        for text in _warnings(last, status):
            self.say(text)
        for text in _errors(last, status) if last is not None else ():
            self.say(text)


def _after(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _warnings(last: StatusReply | None, status: StatusReply) -> Iterator[str]:
    before = {_stem(text) for text in last.warnings} if last is not None else set()
    yield from (f"warning: {text}" for text in status.warnings if _stem(text) not in before)


def _stem(text: str) -> str:
    """Drop the figures of a warning: a growing number is not a new one."""
    return "".join(c for c in text if not c.isdigit())


def _errors(last: StatusReply, status: StatusReply) -> Iterator[str]:
    for key, value in status.counters.items():
        if key.startswith(ERRORS) and (grown := value - last.counters.get(key, 0)) > 0:
            code = key.removeprefix(ERRORS).removeprefix('code="').removesuffix('"}')
            yield f"{grown:.0f} request{'s' if grown > 1 else ''} ended with {code}"
