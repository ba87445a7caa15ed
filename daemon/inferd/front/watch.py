"""Looks at all models now and then: who is idle for too long, whose worker makes no progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.log import Logger
    from inferd.loop import Loop

TICK_S = 0.25
IDLE_STALL_S = 5.0
"""Least silence of an idle worker that counts: it signs life once a second."""


class Watch:
    """A worker without a step while it has work, or silent while it has none, is stalled; at twice, killed.

    While this process was paused it could not hear them, and on a paused machine they could say nothing.
    """

    def __init__(self, models: Models, loop: Loop, log: Logger, stall_s: float) -> None:
        self._models = models
        self._loop = loop
        self._log = log
        self._stall_s = stall_s
        loop.after(TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._loop.clock()
        for model in self._models.all():
            expires = model.expires_in(now)
            if expires is not None and expires <= 0:
                self._models.expire(model)
            elif model.card is not None and model.child is not None and model.state != "unloading":
                self._check(model, model.silence(now) - (self._loop.paused_s - model.paused_s))
        self._loop.after(TICK_S, self._tick)

    def _check(self, model: Model, silent_s: float) -> None:
        stall_s = self._stall_s if model.num_submitted else max(self._stall_s, IDLE_STALL_S)
        if silent_s > 2 * stall_s:
            self._models.give_up_worker(model, f"no step for {silent_s:.0f} s, killed")
        elif silent_s > stall_s and not model.stalled:
            self._log.warning("engine stalled", model=model.name, seconds=round(silent_s))
            self._models.stalled(model)
