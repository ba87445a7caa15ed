"""All metrics in the text format of Prometheus. What is not known is left out, never told as 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from inferd.metrics.names import HELP

if TYPE_CHECKING:
    from prometheus_client import Metric

    from inferd.metrics.histogram import Buckets
    from inferd.metrics.totals import Labels, Metrics
    from inferd_client.protocol import CostStatus, ModelStatus, StatusReply

Sample = tuple[dict[str, str], float | None]
DEVICE_GAUGES = {
    "memory_total_bytes": "total_bytes",
    "memory_free_bytes": "free_bytes",
    "utilization_ratio": "utilization",
    "power_watts": "power_w",
    "temperature_celsius": "temperature_c",
}
MEMORY_PARTS = ("weights", "kv_used", "kv_free", "activations", "process", "other")
COST_PARTS = ("prefill", "decode", "idle")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is told, as it was at one moment; another thread may render it."""

    status: StatusReply
    counters: dict[str, dict[Labels, float]]
    histograms: dict[str, Buckets]

    @staticmethod
    def of(status: StatusReply, metrics: Metrics) -> Snapshot:
        return Snapshot(status, metrics.families(), metrics.histograms())


def render(snapshot: Snapshot) -> str:
    """Return the text. Raises ImportError without the package prometheus_client."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(snapshot))
    return generate_latest(registry).decode()


class Collected:
    """A collector in the sense of prometheus_client, over one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        snapshot = self._snapshot
        for name, family in (*snapshot.counters.items(), *_cost_counters(snapshot.status)):
            yield _filled(CounterMetricFamily, name, [(dict(labels), value) for labels, value in family.items()])
        for name, samples in _gauges(snapshot.status):
            yield _filled(GaugeMetricFamily, name, samples)
        for name, histogram in snapshot.histograms.items():
            metric = HistogramMetricFamily(f"inferd_{name}", HELP.get(name, name))
            bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
            metric.add_metric([], list(zip(bounds, histogram.counts, strict=True)), histogram.total)
            yield metric


def _filled(kind: Any, name: str, samples: Iterable[Sample]) -> Metric:
    """Make a family of samples that all have the same labels; those without a value are left out."""
    known = [(labels, value) for labels, value in samples if value is not None]
    names = list(known[0][0]) if known else []
    metric = kind(f"inferd_{name}", HELP.get(name, name), labels=names)
    for labels, value in known:
        metric.add_metric([labels[label] for label in names], value)
    return metric


def _cost_counters(status: StatusReply) -> Iterator[tuple[str, dict[Labels, float]]]:
    cost = status.cost
    if cost is None:
        return
    spent = {(("phase", part),): value for part in COST_PARTS if (value := getattr(cost, part)) is not None}
    if spent:
        yield "cost_total", spent
    if cost.joules is not None:
        yield "energy_joules_total", {(): cost.joules}
    yield "good_tokens_total", {(): cost.good_tokens}


def _gauges(status: StatusReply) -> Iterator[tuple[str, list[Sample]]]:
    yield "ready", [({}, float(status.ready))]
    yield "uptime_seconds", [({}, status.uptime_s)]
    yield "clients", [({}, status.clients)]
    yield "queue_limit", [({}, status.queue_limit)]
    if status.cost is not None:
        yield "power_watts", [({"source": status.cost.source}, status.cost.watts)]
        yield "cost_per_million_tokens", list(_per_million(status.cost))
    for name, field in DEVICE_GAUGES.items():
        yield f"device_{name}", [({"device": device.name}, getattr(device, field)) for device in status.devices]
    yield (
        "device_memory_bytes",
        [
            ({"device": device.name, "part": part}, getattr(device.memory, part, None))
            for device in status.devices
            for part in MEMORY_PARTS
        ],
    )
    for name, read in MODEL_GAUGES.items():
        yield name, [({"model_name": model.name}, read(model)) for model in status.models]


def _per_million(cost: CostStatus) -> Iterator[Sample]:
    """Yield the one ratio and its parts."""
    values = {"total": cost.per_million} | {part: getattr(cost, f"{part}_per_million") for part in COST_PARTS}
    for part, value in values.items():
        yield {"part": part, "currency": cost.currency, "source": cost.source}, value


def _kv_usage(model: ModelStatus) -> float | None:
    total, free = model.kv_blocks_total, model.kv_blocks_free
    return None if not total or free is None else 1 - free / total


def _use(field: str) -> Callable[[ModelStatus], float | None]:
    return lambda model: getattr(model.utilisation, field, None)


MODEL_GAUGES: dict[str, Callable[[ModelStatus], float | None]] = {
    "model_ready": lambda model: float(model.state == "ready"),
    "num_requests_running": attrgetter("running"),
    "num_requests_waiting": attrgetter("waiting"),
    "num_requests_prefilling": attrgetter("prefilling"),
    "num_requests_decoding": attrgetter("decoding"),
    "num_requests_verifying": attrgetter("verifying"),
    "num_requests_preempted": attrgetter("preempted"),
    "kv_cache_usage_perc": _kv_usage,
    "kv_blocks": attrgetter("kv_blocks_total"),
    "kv_blocks_free": attrgetter("kv_blocks_free"),
    "kv_blocks_cached": attrgetter("kv_blocks_cached"),
    "weight_bytes": attrgetter("weight_bytes"),
    "kv_bytes": attrgetter("kv_bytes"),
    "model_restarts": attrgetter("restarts"),
    "progress_age_seconds": attrgetter("progress_age_s"),
    "prefill_flops_per_second": _use("prefill_flops_s"),
    "flops_ceiling_per_second": _use("flops_ceiling"),
    "prefill_mfu_ratio": _use("mfu"),
    "decode_bytes_per_second": _use("decode_bytes_s"),
    "bytes_ceiling_per_second": _use("bytes_ceiling"),
    "decode_mbu_ratio": _use("mbu"),
    "decode_weight_read_ratio": _use("weight_share"),
}
"""Gauges of each model, by name without the prefix."""
