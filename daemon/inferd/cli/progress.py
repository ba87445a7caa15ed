"""Progress on stderr: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from inferd.cli.output import note
from inferd_tui.escape import clean_line
from inferd_tui.units import size

if TYPE_CHECKING:
    from inferd_client.protocol import Progress

PLAIN_INTERVAL_S = 5.0

Unit = Literal["bytes", "count", "share"]


class PhaseBar:
    """Phases of some work, each so far done of a total; 0 = not known. The bar shows with the first of them."""

    def __init__(self, label: str, unit: Unit = "bytes") -> None:
        self.label = label
        self.unit: Unit = unit
        self._bar: Any = None
        self._task: Any = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def update(self, phase: str, done: int, total: int) -> None:
        """Show where the work stands; may be called as often as one likes."""
        text = f"{self.label}: {phase}"
        if sys.stderr.isatty():
            self._show(text, done, total)
        elif time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            note(f"{text} {self._amount(done)}" + (f" of {self._amount(total)}" if total else ""))

    def close(self) -> None:
        """Take the bar away; an update brings it back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, text: str, done: int, total: int) -> None:
        text = clean_line(text)
        if self._bar is None:
            self._bar = _start_bar(self.unit)
            self._task = self._bar.add_task(text, total=None)
        self._bar.update(self._task, description=text, completed=done, total=total or None)

    def _amount(self, value: int) -> str:
        return size(value) if self.unit == "bytes" else str(value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _start_bar(unit: Unit) -> Any:
    """Return a `rich.progress.Progress` that shows; what else is written to sys.stderr stands above it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    of_unit = {
        "bytes": (DownloadColumn(), TransferSpeedColumn()),
        "count": (MofNCompleteColumn(), TimeElapsedColumn()),
        "share": (TaskProgressColumn(), TimeElapsedColumn()),
    }
    text = TextColumn("{task.description}", markup=False)
    bar = Progress(text, BarColumn(), *of_unit[unit], console=Console(stderr=True), transient=True)
    bar.start()
    return bar


class LoadDisplay:
    """The load of a model, as clients hear of it: a bar on a terminal, each phase told once elsewhere."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._bar = PhaseBar(model, "share")
        self._told = ""

    def __enter__(self) -> Self:
        return self

    def update(self, progress: Progress) -> None:
        """Take a progress report; other states than loading take the bar away."""
        if progress.state != "loading":
            self.close()
        elif sys.stderr.isatty():
            self._bar.update(progress.reason or "loading", progress.done, progress.total)
        elif progress.reason and progress.reason != self._told:
            self._told = progress.reason
            note(f"{self.model}: {progress.reason}")

    def close(self) -> None:
        self._bar.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class ServeDisplay:
    """Loads of a daemon in the foreground: a bar a model on a terminal; elsewhere its log says enough."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def update(self, model: str, phase: str, done: int, total: int) -> None:
        """Show how the load of a model goes; an empty phase ends it."""
        if not sys.stderr.isatty():
            return
        if phase:
            self._show(model, phase, done, total)
        elif set(self._tasks) == {model}:
            self.close()
        elif model in self._tasks:
            self._bars.remove_task(self._tasks.pop(model))

    def close(self) -> None:
        """Take all bars away; an update brings its own back."""
        if self._bars is not None:
            self._bars.stop()
            self._bars, self._tasks = None, {}

    def _show(self, model: str, phase: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _start_bar("share")
        text = clean_line(f"{model}: {phase}")
        if model not in self._tasks:
            self._tasks[model] = self._bars.add_task(text, total=None)
        self._bars.update(self._tasks[model], description=text, completed=done, total=total or None)

    def __exit__(self, *_: object) -> None:
        self.close()
