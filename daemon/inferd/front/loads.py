"""Models that wait for a worker: one loads at a time, and only inside what the ledger grants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferd.link import PROCESS_BYTES

if TYPE_CHECKING:
    from inferd.front.ledger import Ledger
    from inferd.front.model import Model


class LoadQueue:
    """First come, first loaded. What happens to a model is decided here, done by the callbacks."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        is_busy: Callable[[], bool],
        start: Callable[[Model, int], None],
        make_room: Callable[[Model], bool],
        refuse: Callable[[Model, str], None],
    ) -> None:
        self._ledger = ledger
        self._is_busy = is_busy
        self._start = start
        self._make_room = make_room
        self._refuse = refuse
        self._waiting: deque[Model] = deque()

    def add(self, model: Model) -> int:
        """Queue a model; how many wait now."""
        self._waiting.append(model)
        return len(self._waiting)

    def discard(self, model: Model) -> None:
        if model in self._waiting:
            self._waiting.remove(model)

    def advance(self) -> None:
        """Start the next load unless one runs; wait while another model leaves; refuse what cannot fit."""
        while self._waiting and not self._is_busy():
            model = self._waiting[0]
            need = model.file_bytes + PROCESS_BYTES
            grant = self._ledger.grant(model.device, model.name, need)
            if grant is None and self._make_room(model):
                return
            self._waiting.popleft()
            if grant is None:
                self._refuse(model, self._ledger.explain(model.device, need))
            else:
                self._start(model, model.config.engine.memory or grant)
