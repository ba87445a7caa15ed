"""What the threads tell the monitor. Widgets do no I/O: all they show came in one of these."""

from __future__ import annotations

from typing import Any

from textual.message import Message

from inferd_client.protocol import ModelEvent, StatusReply


class Snapshot(Message):
    """The newest state of the daemon."""

    def __init__(self, status: StatusReply) -> None:
        super().__init__()
        self.status = status

    def can_replace(self, message: Message) -> bool:
        """A newer snapshot makes an unread one pointless."""
        return isinstance(message, Snapshot)


class ModelChanged(Message):
    """A model changed its state."""

    def __init__(self, event: ModelEvent) -> None:
        super().__init__()
        self.event = event


class Lost(Message):
    """No snapshots come."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Answered(Message):
    """A command to the daemon ended: with a value, or with an error for people."""

    def __init__(self, command: str, value: Any = None, error: str = "") -> None:
        super().__init__()
        self.command = command
        self.value = value
        self.error = error
