"""Progress on stderr: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inferd.cli.output import note
from inferd_tui.escape import clean_line
from inferd_tui.units import size

if TYPE_CHECKING:
    from inferd_client.protocol import Progress

PLAIN_INTERVAL_S = 5.0


class PhaseBar:
    """Phases of some work, each in bytes done of a total; 0 = not known."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._bar: Any = None
        self._task: Any = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(clean_line(self.label), total=None)
            self._bar.start()
        return self

    def update(self, phase: str, done: int, total: int) -> None:
        """Show where the work stands; may be called as often as one likes."""
        text = f"{self.label}: {phase}"
        if self._bar is not None:
            self._bar.update(self._task, description=clean_line(text), completed=done, total=total or None)
        elif time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            note(f"{text} {size(done)}" + (f" of {size(total)}" if total else ""))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class LoadDisplay:
    """Phases of a model load as short notes, each told once."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._told = ""

    def __enter__(self) -> Self:
        return self

    def update(self, progress: Progress) -> None:
        if progress.reason and progress.reason != self._told:
            self._told = progress.reason
            note(f"{self.model}: {progress.reason}")

    def __exit__(self, *_: object) -> None:
        return
