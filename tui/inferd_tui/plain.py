"""A status snapshot as plain lines: for `inferd status`, pipes, screen readers and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterator

from inferd_client.protocol import CostStatus, DeviceStatus, ModelStatus, StatusReply, Utilisation
from inferd_tui.escape import clean_line
from inferd_tui.units import NA, money, number, percent, quantity, seconds, size, table

MEMORY = {
    "weights": "weights",
    "kv_used": "KV used",
    "kv_free": "KV free",
    "activations": "activations",
    "process": "process",
    "other": "others",
}
"""Parts of a device's memory, in the order of the monitor's bar, and what they are called."""
WAITED = {
    "host": "waited for the host, which helps to choose or report tokens",
    "room": "for room in the KV pool",
    "idle": "had nothing behind them",
}
"""Why a step did not overlap with the next."""
MAX_REQUESTS = 20
"""Rows of the request table; the rest is counted."""


def render(status: StatusReply) -> list[str]:
    """Return the whole view; sections without content are left out."""
    parts = [
        _header(status),
        [f"WARNING: {clean_line(text)}" for text in status.warnings],
        [line for device in status.devices for line in _device(device)],
        models(status.models),
        _latency(status),
        _cost(status.cost),
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


def _device(device: DeviceStatus) -> Iterator[str]:
    ledger = ", ".join(f"{entry.owner} {size(entry.bytes)}" for entry in device.ledger) or "nothing granted"
    kind = " unified" if device.unified else ""
    name = f"{device.name}{kind}"
    text = f"{name}: {size(device.free_bytes)} free of {size(device.total_bytes)}"
    yield clean_line(f"{text}, may grant {size(device.limit_bytes)}: {ledger}")
    if device.memory is not None:
        parts = ", ".join(f"{label} {size(getattr(device.memory, field))}" for field, label in MEMORY.items())
        yield clean_line(f"{name}: {parts}")
    sensors = {
        "busy": None if device.utilization is None else f"{100 * device.utilization:.0f}%",
        "power": None if device.power_w is None else f"{device.power_w:.0f} W",
        "temperature": None if device.temperature_c is None else f"{device.temperature_c} C",
        "no figures": device.problem or None,
    }
    told = ", ".join(f"{label} {value}" for label, value in sensors.items() if value is not None)
    if told:
        yield clean_line(f"{name}: {device.description + ', ' if device.description else ''}{told}")


def use_lines(use: Utilisation | None) -> list[str]:
    """Return what prefill and decode achieved against the measured ceilings; nothing where nothing ran."""
    found: list[str] = []
    if use is not None and use.prefill_flops_s is not None:
        most = f"{quantity(use.flops_ceiling, 'FLOP/s')} measured in {use.flops_format or NA}"
        found.append(f"prefill MFU {percent(use.mfu, 1)}: {quantity(use.prefill_flops_s, 'FLOP/s')} of {most}")
    if use is not None and use.decode_bytes_s is not None:
        most = f"{quantity(use.bytes_ceiling, 'B/s')} measured; {percent(use.weight_share, 1)} weights, the rest KV"
        found.append(f"decode MBU {percent(use.mbu, 1)}: {quantity(use.decode_bytes_s, 'B/s')} of {most}")
    return found


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
    if threads := model.shape.get("threads"):
        yield clean_line(f"{name}: {threads} threads ({model.shape_origin.get('threads', NA)})")
    if reserve := model.shape.get("device_reserve"):
        why = model.shape_origin.get("device_reserve", NA)
        yield clean_line(f"{name}: {size(reserve)} of the GPU are left to others ({why})")
    for text in (model.weights_note, f"eager: {model.eager_because}" if model.eager_because else ""):
        if text:
            yield f"{name}: {clean_line(text)}"
    if overlapped := _overlapped(model.steps):
        yield f"{name}: {overlapped}"
    yield from (f"{name}: {line}" for line in use_lines(model.utilisation))
    if model.restarts:
        yield f"{name}: its worker was restarted {model.restarts} time{'s' * (model.restarts > 1)}"


def _overlapped(steps: dict[str, int]) -> str:
    """Say how many steps overlapped, and why others did not; empty where none is meant to."""
    total = sum(steps.values()) - steps.get("off", 0)
    if not total:
        return ""
    waited = ", ".join(f"{steps[why]:,} {text}" for why, text in WAITED.items() if steps.get(why))
    return f"{steps.get('yes', 0):,} of {total:,} steps overlapped" + (f" ({waited})" if waited else "")


def _latency(status: StatusReply) -> list[str]:
    seen = {name: value for name, value in status.latency.items() if value.count}
    cells = [(n, number(v.count), seconds(v.p50), seconds(v.p95), seconds(v.p99)) for n, v in seen.items()]
    return table(("LATENCY", "COUNT", "P50", "P95", "P99"), cells) if cells else []


def _cost(cost: CostStatus | None) -> list[str]:
    """Say what a million good tokens cost, and what that rests on; nothing where nothing is known."""
    if cost is None or (cost.source == "n/a" and cost.watts is None):
        return []
    watts = NA if cost.watts is None else f"{cost.watts:.0f} W"
    rests = f", {cost.source}" + (f" from {', '.join(cost.meters)}" if cost.meters else "")
    parts = ", ".join(
        f"{name} {money(getattr(cost, f'{name}_per_million'), cost.currency)}" for name in ("prefill", "decode", "idle")
    )
    return [
        clean_line(f"cost per million good tokens: {money(cost.per_million, cost.currency)} ({parts}){rests}"),
        f"power {watts}, {quantity(cost.joules, 'J')} since the start; "
        f"{number(cost.good_tokens)} of {number(cost.output_tokens)} output tokens were good",
    ]


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
