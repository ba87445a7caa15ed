"""One model the front knows: its worker, its state, its requests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inferd.metrics.utilisation import UseWindow
from inferd_client.protocol import Code, ModelStatus

if TYPE_CHECKING:
    from inferd.channel import Channel
    from inferd.config.schema import Config
    from inferd.front.catalog import Found
    from inferd.front.records import Request
    from inferd.link import Ceilings, DeviceUse, EngineOut, ModelCard, StepStats
    from inferd.loop import Timer
    from inferd.process import Child

ModelState = Literal["loading", "ready", "draining", "unloading", "restarting", "failed"]

DEATHS = 3
DEATH_WINDOW_S = 60.0
FAILED_LOADS = 2
BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
SUSPECTS = 1024
"""Request digests remembered from the deaths of a worker."""
POISONOUS = 2
"""Deaths at which a request was present before it is refused."""

Outcome = Callable[[Code | None, str], None]
"""Told how a load or unload ended: (None, detail) or (code, why)."""


@dataclass(slots=True, eq=False)
class Model:
    """State of one model. `child` and `channel` are those of its present worker."""

    name: str
    path: str
    file_bytes: int
    config: Config
    """Merged for this model."""
    device: str
    is_default: bool
    keep_alive_s: float
    state: ModelState = "loading"
    detail: str = ""
    child: Child | None = None
    channel: Channel[EngineOut] | None = None
    card: ModelCard | None = None
    stats: StepStats | None = None
    ceilings: Ceilings | None = None
    use: DeviceUse | None = None
    window: UseWindow = field(default_factory=UseWindow)
    steps: Counter[str] = field(default_factory=Counter)
    """By how they overlapped."""
    requests: dict[str, Request] = field(default_factory=dict)
    num_submitted: int = 0
    load_done: int = 0
    load_total: int = 0
    restarts: int = 0
    deaths: deque[float] = field(default_factory=deque)
    last_death: str = ""
    failed_loads: int = 0
    suspects: dict[bytes, int] = field(default_factory=dict)
    last_step: float = 0.0
    """When the worker last finished a step, or got work after idling."""
    last_heard: float = 0.0
    paused_s: float = 0.0
    """`Loop.paused_s` when it was last heard, or got work after idling."""
    stalled: bool = False
    idle_since: float = 0.0
    failure: tuple[Code, str] = (Code.MODEL_LOAD_FAILED, "")
    load_timer: Timer | None = None
    loaded: list[Outcome] = field(default_factory=list)
    unloaded: list[Outcome] = field(default_factory=list)

    @classmethod
    def of(cls, found: Found, config: Config, default: str, device: str) -> Model:
        own = config.models.get(found.name)
        keep = own.keep_alive_s if own is not None and own.keep_alive_s is not None else config.daemon.keep_alive_s
        return cls(
            name=found.name,
            path=found.path,
            file_bytes=found.bytes,
            config=config.for_model(found.name),
            device=device,
            is_default=found.name == default,
            keep_alive_s=keep,
        )

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def expires_in(self, now: float) -> float | None:
        """Seconds until the idle unload; None = never, or busy."""
        if self.busy or self.is_default or self.keep_alive_s < 0 or self.state != "ready":
            return None
        return self.idle_since + self.keep_alive_s - now

    def note_death(self, now: float, why: str, running: list[Request]) -> None:
        """Remember when and why the worker died and which requests were in it."""
        self.deaths.append(now)
        self.last_death = why
        while self.deaths[0] < now - DEATH_WINDOW_S:
            self.deaths.popleft()
        for request in running:
            self.suspects[request.digest] = self.suspects.pop(request.digest, 0) + 1
        while len(self.suspects) > SUSPECTS:
            del self.suspects[next(iter(self.suspects))]

    @property
    def hopeless(self) -> bool:
        return len(self.deaths) >= DEATHS or self.failed_loads >= FAILED_LOADS

    @property
    def backoff_s(self) -> float:
        return min(MAX_BACKOFF_S, BACKOFF_S * 2 ** max(0, len(self.deaths) + self.failed_loads - 1))

    def progress_age(self, now: float) -> float | None:
        """Seconds since the last step while there is work."""
        return now - self.last_step if self.num_submitted and self.state in ("ready", "draining") else None

    def silence(self, now: float) -> float:
        """Seconds without a step while there is work, without a word while there is none."""
        age = self.progress_age(now)
        return now - self.last_heard if age is None else age

    def status(self, now: float) -> ModelStatus:
        card, stats = self.card, self.stats
        now_running = stats if self.num_submitted else None
        return ModelStatus(
            name=self.name,
            state=self.state,
            path=self.path,
            detail=self.detail,
            pid=self.child.pid if self.child else None,
            device=card.device if card else self.device,
            dtype=card.dtype if card else "",
            architecture=card.architecture if card else "",
            plugins=card.plugins if card else {},
            exactness=card.exactness if card else "",
            exactness_by=card.exactness_by if card else "",
            eager_because=card.eager_because if card else "",
            shape=card.shape if card else {},
            shape_origin=card.shape_origin if card else {},
            weights_note=card.weights_note if card else "",
            weight_bytes=card.weight_bytes if card else None,
            kv_bytes=card.kv_bytes if card else None,
            kv_blocks_total=stats.kv_total if stats else None,
            kv_blocks_free=stats.kv_free if stats else None,
            kv_blocks_cached=stats.kv_cached if stats else None,
            running=now_running.running if now_running else 0,
            waiting=len(self.requests) - self.num_submitted + (now_running.waiting if now_running else 0),
            prefilling=now_running.prefilling if now_running else 0,
            decoding=now_running.decoding if now_running else 0,
            verifying=now_running.verifying if now_running else 0,
            preempted=now_running.preempted if now_running else 0,
            restarts=self.restarts,
            expires_s=self.expires_in(now),
            progress_age_s=self.progress_age(now),
            utilisation=self.window.read(now, self.ceilings, card.compute_format if card else ""),
            stalled=self.stalled,
            steps=dict(self.steps),
        )
