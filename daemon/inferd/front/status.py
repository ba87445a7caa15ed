"""The report on everything: answer to `status` and body of each snapshot. Cheap whatever goes on."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Literal

import inferd
from inferd.devices import HostMemory, host_memory
from inferd_client.protocol import RequestStatus, StatusReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.front.accounts import Accounts
    from inferd.front.hardware import Hardware
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.front.requests import Requests
    from inferd.front.sessions import Sessions
    from inferd.loop import Loop
    from inferd.metrics import Metrics

MAX_REQUESTS = 256
"""Requests listed one by one; `models` and `counters` cover all."""
SAMPLE_S = 1.0


class CachedMemory:
    """Host memory, read at most once a second."""

    def __init__(self, clock: Callable[[], float], measure: Callable[[], HostMemory | None] = host_memory) -> None:
        self._clock = clock
        self._measure = measure
        self._read_at = float("-inf")
        self._value: HostMemory | None = None

    def __call__(self) -> HostMemory | None:
        if self._clock() - self._read_at >= SAMPLE_S:
            self._value, self._read_at = self._measure(), self._clock()
        return self._value


class StatusBuilder:
    """Collects the parts of a `StatusReply`."""

    def __init__(
        self,
        instance: str,
        max_queue: int,
        models: Models,
        requests: Requests,
        sessions: Sessions,
        hardware: Hardware,
        accounts: Accounts,
        metrics: Metrics,
        loop: Loop,
    ) -> None:
        self._instance = instance
        self._max_queue = max_queue
        self._models = models
        self._requests = requests
        self._sessions = sessions
        self._hardware = hardware
        self._accounts = accounts
        self._metrics = metrics
        self._loop = loop
        self._started = loop.clock()

    @property
    def ready(self) -> bool:
        """Whether the default model, or any where there is none, serves."""
        default = self._models.get(self._models.default)
        return default is not None and default.state == "ready"

    def build(self, *, request_id: str = "", seq: int = 0) -> StatusReply:
        now = self._loop.clock()
        return StatusReply(
            id=request_id,
            seq=seq,
            instance=self._instance,
            version=inferd.__version__,
            pid=os.getpid(),
            live=True,
            ready=self.ready and not self._requests.draining,
            state=self._state(),
            uptime_s=now - self._started,
            default_model=self._models.default,
            devices=self._hardware.statuses(),
            models=tuple(model.status(now) for model in self._models.all()),
            requests=self._list_requests(now),
            clients=len(self._sessions),
            queue_limit=self._max_queue,
            counters=dict(self._metrics.counters),
            latency=self._metrics.latencies(now),
            cost=self._accounts.status(),
            warnings=tuple(self._warnings(now)),
        )

    def _state(self) -> Literal["starting", "serving", "draining"]:
        if self._requests.draining:
            return "draining"
        default = self._models.get(self._models.default)
        return "starting" if default is not None and default.state == "loading" else "serving"

    def _list_requests(self, now: float) -> tuple[RequestStatus, ...]:
        return tuple(
            RequestStatus(
                id=request.id,
                client=request.session.name,
                model=request.model.name,
                state=request.state,
                prompt_tokens=request.num_prompt,
                output_tokens=request.num_output,
                age_s=now - request.arrival,
                reason=request.reason,
                done=request.done if request.state == "prefill" else 0,
                cached_tokens=request.cached_tokens,
                preemptions=request.usage.preemptions,
                priority=request.message.priority,
            )
            for request in islice(self._requests.live.values(), MAX_REQUESTS)
        )

    def _warnings(self, now: float) -> list[str]:
        found = [self._model_warning(model, now) for model in self._models.all()]
        if len(self._requests.live) > MAX_REQUESTS:
            found.append(f"{len(self._requests.live)} requests, the oldest {MAX_REQUESTS} are listed")
        return [text for text in found if text]

    def _model_warning(self, model: Model, now: float) -> str:
        if model.state == "failed":
            return f"model {model.name} failed: {model.detail}"
        if model.stalled:
            return f"model {model.name} is stalled: no sign of progress for {model.silence(now):.0f} s"
        if model.state == "restarting":
            return f"model {model.name} restarts: {model.detail}"
        return ""
