"""Reports on the daemon: status, models, plugins, and what the events socket publishes."""

from __future__ import annotations

from typing import Literal

from .base import Reply
from .cost import CostStatus, Utilisation


class MemoryEntry(Reply):
    """One line of the ledger."""

    owner: str
    bytes: int


class MemoryUse(Reply):
    """What the used memory of a device holds, in bytes; None = not known."""

    weights: int | None = None
    kv_used: int | None = None
    kv_free: int | None = None
    """The rest of the KV pools; on a host its blocks take memory when they are first touched."""
    activations: int | None = None
    """Scratch of steps."""
    process: int | None = None
    """Of inferd's processes beside those: programs and libraries."""
    other: int | None = None
    """Of processes that are not inferd's."""


class DeviceStatus(Reply):
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    """What the ledger may grant."""
    ledger: tuple[MemoryEntry, ...] = ()
    unified: bool = False
    """A GPU without memory of its own: the figures are the system's."""
    description: str = ""
    """The product, of a GPU."""
    memory: MemoryUse | None = None
    utilization: float | None = None
    """Share of the last moments in which a GPU was at work, 0 to 1."""
    power_w: float | None = None
    temperature_c: int | None = None
    problem: str = ""
    """Why figures are missing."""


class ModelStatus(Reply):
    name: str
    state: Literal["loading", "ready", "draining", "unloading", "restarting", "failed"]
    path: str = ""
    detail: str = ""
    """Phase of a load, or why it failed."""
    pid: int | None = None
    device: str = ""
    dtype: str = ""
    architecture: str = ""
    plugins: dict[str, str] = {}
    """Kind to chosen plugin."""
    exactness: str = ""
    exactness_by: str = ""
    """The plugin that lowers it most."""
    eager_because: str = ""
    shape: dict[str, int] = {}
    shape_origin: dict[str, str] = {}
    """Where each size of `shape` came from."""
    weights_note: str = ""
    """How the weights are computed on, e.g. that they were dequantised."""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    kv_blocks_total: int | None = None
    kv_blocks_free: int | None = None
    kv_blocks_cached: int | None = None
    running: int = 0
    waiting: int = 0
    prefilling: int = 0
    decoding: int = 0
    verifying: int = 0
    preempted: int = 0
    restarts: int = 0
    expires_s: float | None = None
    """Seconds until an idle unload; None = never or busy."""
    progress_age_s: float | None = None
    """Seconds since the engine last finished a step, while it has work."""
    utilisation: Utilisation | None = None
    stalled: bool = False
    """It gave no sign of progress for longer than is allowed."""
    steps: dict[str, int] = {}
    """Steps of its worker by whether the next was started before their outcome was known: yes, or why not (off, host,
    room, idle)."""


class Latency(Reply):
    """Percentiles over the recent window, in seconds; None while nothing was seen."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class RequestStatus(Reply):
    id: str
    client: str
    model: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    reason: str = ""
    done: int = 0
    """Prompt tokens computed so far, in state prefill."""
    cached_tokens: int = 0
    preemptions: int = 0
    priority: int = 0


class StatusReply(Reply, tag="status"):
    """Answer to `status`, and the body of each snapshot on the events socket."""

    id: str = ""
    seq: int = 0
    instance: str = ""
    version: str = ""
    pid: int = 0
    live: bool = True
    ready: bool = False
    state: Literal["starting", "serving", "draining"] = "serving"
    uptime_s: float = 0.0
    default_model: str = ""
    devices: tuple[DeviceStatus, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    requests: tuple[RequestStatus, ...] = ()
    clients: int = 0
    queue_limit: int = 0
    counters: dict[str, float] = {}
    """Monotonic totals under their Prometheus names."""
    latency: dict[str, Latency] = {}
    """By name: queue, prefill, ttft, tpot, itl, e2e of requests; decode, verify of engine steps."""
    cost: CostStatus | None = None
    warnings: tuple[str, ...] = ()


class ModelInfo(Reply):
    """A model in the store or loaded."""

    name: str
    path: str
    bytes: int
    architecture: str = ""
    quantization: str = ""
    context: int | None = None
    loaded: bool = False
    state: str = ""
    default: bool = False
    problem: str = ""


class ModelsReply(Reply, tag="models"):
    id: str
    models: tuple[ModelInfo, ...]


class PluginInfo(Reply):
    name: str
    kind: str
    state: Literal["available", "chosen", "rejected", "FAILED", "disabled"]
    source: str
    """Distribution that brought it."""
    version: str = ""
    api: str = ""
    target: str = ""
    exactness: str = ""
    why: str = ""
    """Why it was not chosen, or the traceback of a failure."""


class PluginsReply(Reply, tag="plugins"):
    id: str
    plugins: tuple[PluginInfo, ...]


class ModelEvent(Reply, tag="model"):
    """On the events socket: a model changed state."""

    seq: int
    name: str
    state: str
    detail: str = ""
