"""Keep the traffic record of the daemon: told of requests as they come and end, written a little later."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferd.traffic import file
from inferd.traffic.record import MAX_MODELS, Traffic

if TYPE_CHECKING:
    from inferd.front.records import Request
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd_client.protocol import TrafficReport

WRITE_S = 5.0
"""A daemon that is killed loses at most this much."""
COUNTED = ("stop", "length", "cancelled")
"""Ends whose lengths count. What failed is usually sent again, and would count twice."""
LOCK_FILE = "traffic.lock"


class TrafficKeeper:
    """The records of all models. One daemon writes a state folder; a second one there keeps its own in memory."""

    def __init__(
        self, folder: Path, *, enabled: bool, loop: Loop, log: Logger, wall: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self.enabled = enabled
        self._loop = loop
        self._log = log
        self._wall = wall
        self._changed: set[str] = set()
        """Models whose record is newer than what was written."""
        self._encoded: dict[str, msgspec.Raw] = {}
        self._lock = self._take_folder() if enabled else None
        self._models = self._read() if self._lock is not None else {}
        if enabled:
            loop.after(WRITE_S, self._tick)

    def arrived(self, request: Request) -> None:
        if self._counts(request):
            self._of(request.model.name).arrived(self._when(request))

    def ended(self, request: Request, how: str) -> None:
        """Note a request that is over, if it ran."""
        if self._counts(request) and how in COUNTED and request.num_output:
            outputs = [choice.num_ids for choice in request.choices]
            record = self._of(request.model.name)
            record.ended(self._when(request), request.num_prompt, outputs, request.cached_tokens, how)

    def reports(self, model: str = "") -> tuple[TrafficReport, ...]:
        """Return the records of one model, or of all."""
        return tuple(t.report() for name, t in self._models.items() if model in ("", name))

    def clear(self, model: str = "") -> None:
        """Forget one model's record, or all, here and on disk."""
        for name in [model] if model else list(self._models):
            self._models.pop(name, None)
            self._changed.add(name)
        self._write()

    def close(self) -> None:
        """Write what is new and let the folder go."""
        self._write()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _counts(self, request: Request) -> bool:
        return self.enabled and request.message.record

    def _when(self, request: Request) -> float:
        return self._wall() - (self._loop.clock() - request.arrival)

    def _of(self, model: str) -> Traffic:
        """Return the record of a model, to be added to; past the limit the one used least recently goes."""
        found = self._models.pop(model, None) or Traffic(model, self._wall())
        self._models[model] = found
        self._changed.add(model)
        while len(self._models) > MAX_MODELS:
            del self._models[next(iter(self._models))]
        return found

    # --- disk -----------------------------------------------------------------------------------

    def _take_folder(self) -> int | None:
        try:
            file.make_folder(self._folder)
            lock = os.open(self._folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._log.warning("the traffic record stays in memory", why=str(error))
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._log.info("the traffic record stays in memory", why=f"another daemon keeps {self._folder}")
            os.close(lock)
            return None
        return lock

    def _read(self) -> dict[str, Traffic]:
        """Take up what is on disk; a damaged file is put aside, not overwritten."""
        try:
            return {report.model: Traffic.of(report) for report in file.read(self._folder)}
        except (ValueError, OSError) as error:
            self._log.warning("the traffic record starts anew", why=str(error))
            file.put_aside(self._folder)
            return {}

    def _tick(self) -> None:
        self._write()
        self._loop.after(WRITE_S, self._tick)

    def _write(self) -> None:
        """Write what is new; only changed records are encoded, so that this takes no longer than one may wait."""
        if not self._changed or self._lock is None:
            return
        self._encoded = {name: self._encode(name) for name in self._models}
        self._changed.clear()
        try:
            file.write(self._folder, self._encoded.values())
        except OSError as error:
            self._log.warning("the traffic record could not be written", why=str(error))

    def _encode(self, name: str) -> msgspec.Raw:
        known = None if name in self._changed else self._encoded.get(name)
        return known or file.encode(self._models[name].report())
