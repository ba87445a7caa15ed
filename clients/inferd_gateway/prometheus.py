"""The daemon's status as Prometheus text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd_client.protocol import ModelStatus, StatusReply

CONTENT_TYPE = "text/plain; version=0.0.4"
QUANTILES = (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"))

Sample = tuple[str, float | None]
"""Name with labels, value."""


def exposition(status: StatusReply) -> str:
    """Return all counters, latencies and gauges. What is not known is left out."""
    lines: list[str] = []
    for kind, samples in (("counter", _counters(status)), ("gauge", _gauges(status))):
        families: dict[str, list[str]] = {}
        for name, value in samples:
            if value is not None and math.isfinite(value):
                families.setdefault(name.partition("{")[0], []).append(f"{name} {value:.17g}")
        for family, entries in families.items():
            lines += [f"# TYPE {family} {kind}", *entries]
    return "\n".join(lines) + "\n"


def _counters(status: StatusReply) -> Iterator[Sample]:
    yield from status.counters.items()


def _gauges(status: StatusReply) -> Iterator[Sample]:
    yield "inferd_ready", float(status.ready)
    yield "inferd_uptime_seconds", status.uptime_s
    yield "inferd_clients", status.clients
    for name, latency in status.latency.items():
        yield _labelled("inferd_latency_window_count", phase=name), latency.count
        for quantile, field in QUANTILES:
            yield _labelled("inferd_latency_seconds", phase=name, quantile=quantile), getattr(latency, field)
    for device in status.devices:
        yield _labelled("inferd_device_memory_total_bytes", device=device.name), device.total_bytes
        yield _labelled("inferd_device_memory_free_bytes", device=device.name), device.free_bytes
    for model in status.models:
        yield from _model(model)


def _model(model: ModelStatus) -> Iterator[Sample]:
    total, free = model.kv_blocks_total, model.kv_blocks_free
    values: dict[str, float | None] = {
        "inferd_model_ready": float(model.state == "ready"),
        "inferd_num_requests_running": model.running,
        "inferd_num_requests_waiting": model.waiting,
        "inferd_num_requests_prefilling": model.prefilling,
        "inferd_num_requests_decoding": model.decoding,
        "inferd_num_requests_verifying": model.verifying,
        "inferd_num_requests_preempted": model.preempted,
        "inferd_kv_cache_usage_perc": None if not total or free is None else 1 - free / total,
        "inferd_kv_blocks_total": total,
        "inferd_kv_blocks_free": free,
        "inferd_kv_blocks_cached": model.kv_blocks_cached,
        "inferd_weight_bytes": model.weight_bytes,
        "inferd_kv_bytes": model.kv_bytes,
        "inferd_model_restarts": model.restarts,
        "inferd_progress_age_seconds": model.progress_age_s,
    }
    for name, value in values.items():
        yield _labelled(name, model_name=model.name), value


def _labelled(name: str, **labels: str) -> str:
    return name + "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
