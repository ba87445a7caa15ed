"""All text processes: one for each open model, so that closing one frees its vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import zmq

from inferd.front.text_process import OnResult, TextProcess
from inferd.link import TextJob, TextOpen, TextResult

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.schema import Text
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics

WATCH_S = 0.1


class Texts:
    """Opens and closes text processes, and hands each job to the one of its model."""

    def __init__(
        self,
        module: str,
        settings: Text,
        runtime: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        numbers = count(1)
        self._make: Callable[[TextOpen], TextProcess] = partial(
            TextProcess,
            links=lambda: runtime / f"t{next(numbers)}.sock",
            module=module,
            settings=settings,
            context=context,
            loop=loop,
            metrics=metrics,
            log=log,
        )
        self._loop = loop
        self._processes: dict[str, TextProcess] = {}
        loop.after(WATCH_S, self._watch)

    def open(self, model: str, path: str, chat_template: str = "") -> None:
        """Make a model's vocabulary known; once is enough, and a failed one is tried again."""
        process = self._processes.get(model)
        if process is None or process.error:
            self._processes[model] = self._make(TextOpen(model=model, path=path, chat_template=chat_template))

    def close_model(self, model: str) -> None:
        process = self._processes.pop(model, None)
        if process is not None:
            process.close(f"model {model} was closed")

    def submit(self, job: TextJob, client: int, done: OnResult) -> None:
        """Do a job of a client; `done` is called with its result exactly once, unless it is cancelled."""
        process = self._processes.get(job.model)
        if process is None:
            error = f"model {job.model!r} is not open"
            self._loop.after(0, lambda: done(TextResult(key=job.key, error=error, field="model")))
        else:
            process.submit(job, client, done)

    def cancel(self, key: str) -> None:
        """Forget a job; if it was sent already its result is ignored."""
        any(process.cancel(key) for process in self._processes.values())

    def close(self) -> None:
        for process in self._processes.values():
            process.close("the daemon is shutting down")

    def _watch(self) -> None:
        for process in list(self._processes.values()):
            process.check_time()
        self._loop.after(WATCH_S, self._watch)
