"""A status snapshot as plain lines: for `inferd status`, pipes, screen readers and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterator

from inferd_client.protocol import DeviceStatus, ModelStatus, StatusReply
from inferd_tui.escape import clean_line
from inferd_tui.units import NA, number, seconds, size, table

MAX_REQUESTS = 20
"""Rows of the request table; the rest is counted."""


def render(status: StatusReply) -> list[str]:
    """Return the whole view; sections without content are left out."""
    parts = [
        _header(status),
        [f"WARNING: {clean_line(text)}" for text in status.warnings],
        [_device(device) for device in status.devices],
        models(status.models),
        _latency(status),
        _requests(status),
    ]
    return [line for part in parts if part for line in ("", *part)][1:]


def models(found: tuple[ModelStatus, ...]) -> list[str]:
    """Return the table of loaded models."""
    if not found:
        return ["no model is loaded"]
    headers = ("MODEL", "STATE", "DEVICE", "DTYPE", "CONTEXT", "WEIGHTS", "KV", "KV USED", "RUN", "WAIT", "EXPIRES")
    lines = table(headers, [_model(m) for m in found])
    return [*lines, *(note for m in found for note in _model_notes(m))]


def _header(status: StatusReply) -> list[str]:
    health = "ready" if status.ready else "not ready"
    return [
        f"inferd {clean_line(status.version)}: {status.state}, {health}, pid {status.pid}, "
        f"up {seconds(status.uptime_s)}, {status.clients} clients"
    ]


def _device(device: DeviceStatus) -> str:
    ledger = ", ".join(f"{entry.owner} {size(entry.bytes)}" for entry in device.ledger) or "nothing granted"
    kind = " unified" if device.unified else ""
    text = f"{device.name}{kind}: {size(device.free_bytes)} free of {size(device.total_bytes)}"
    return clean_line(f"{text}, may grant {size(device.limit_bytes)}: {ledger}")


def _model(model: ModelStatus) -> tuple[str, ...]:
    return (
        model.name,
        model.state,
        model.device or NA,
        model.dtype or NA,
        number(model.shape.get("max_context")),
        size(model.weight_bytes),
        size(model.kv_bytes),
        _kv_used(model),
        str(model.running),
        str(model.waiting),
        "never" if model.expires_s is None else seconds(model.expires_s),
    )


def _kv_used(model: ModelStatus) -> str:
    total, free = model.kv_blocks_total, model.kv_blocks_free
    return NA if not total or free is None else f"{100 * (total - free) / total:.0f}%"


def _model_notes(model: ModelStatus) -> Iterator[str]:
    name = clean_line(model.name)
    if model.detail:
        yield f"{name}: {clean_line(model.detail)}"
    if model.exactness:
        by = f" (lowered by {model.exactness_by})" if model.exactness_by else ""
        yield clean_line(f"{name}: exactness {model.exactness}{by}")
    for text in (model.weights_note, f"eager: {model.eager_because}" if model.eager_because else ""):
        if text:
            yield f"{name}: {clean_line(text)}"
    if model.restarts:
        yield f"{name}: its worker was restarted {model.restarts} times"


def _latency(status: StatusReply) -> list[str]:
    seen = {name: value for name, value in status.latency.items() if value.count}
    cells = [(n, number(v.count), seconds(v.p50), seconds(v.p95), seconds(v.p99)) for n, v in seen.items()]
    return table(("LATENCY", "COUNT", "P50", "P95", "P99"), cells) if cells else []


def _requests(status: StatusReply) -> list[str]:
    shown = status.requests[:MAX_REQUESTS]
    if not shown:
        return []
    cells = [
        (r.id, r.client, r.model, r.state, number(r.prompt_tokens), number(r.output_tokens), seconds(r.age_s), r.reason)
        for r in shown
    ]
    lines = table(("REQUEST", "CLIENT", "MODEL", "STATE", "PROMPT", "OUTPUT", "AGE", "WHY"), cells)
    hidden = len(status.requests) - len(shown)
    return [*lines, f"... and {hidden} more"] if hidden else lines
