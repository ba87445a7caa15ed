"""Use of the hardware and what it cost, of one request and of the daemon. None = nobody knows, never 0."""

from __future__ import annotations

from typing import Literal

from .base import Reply

CostSource = Literal["measured", "estimated", "n/a"]


class Cost(Reply):
    """One request's share of device time, and the money for it. Idle time is nobody's."""

    source: CostSource = "n/a"
    """`measured`: energy by counters; `estimated`: configured watts or hardware price alone."""
    currency: str = ""
    prefill: float | None = None
    decode: float | None = None
    per_million: float | None = None
    """Both, for a million output tokens of this request."""
    joules: float | None = None
    prefill_s: float = 0.0
    """Device seconds: a step's prefill time is shared by tokens, its decode time by rows and KV bytes."""
    decode_s: float = 0.0
    good: bool = True
    """Its latencies were within the configured bounds."""


class CostStatus(Reply):
    """What the daemon's devices cost since its start; idle time apart."""

    source: CostSource = "n/a"
    meters: tuple[str, ...] = ()
    """The counters that were read, or what the estimate rests on."""
    currency: str = ""
    watts: float | None = None
    """Mean of the last interval."""
    joules: float | None = None
    prefill: float | None = None
    decode: float | None = None
    idle: float | None = None
    per_million: float | None = None
    """All of it for a million good output tokens; the next three are its parts."""
    prefill_per_million: float | None = None
    decode_per_million: float | None = None
    idle_per_million: float | None = None
    output_tokens: int = 0
    good_tokens: int = 0
    """Of requests within the latency bounds of the configuration."""


class Utilisation(Reply):
    """What an engine made of its machine in the last minute; ceilings are measured on it, not looked up."""

    prefill_flops_s: float | None = None
    """Floating operations a second of prefill."""
    flops_ceiling: float | None = None
    """Of matrix products in `flops_format`."""
    flops_format: str = ""
    mfu: float | None = None
    decode_bytes_s: float | None = None
    """Weights and KV that decode read a second."""
    bytes_ceiling: float | None = None
    mbu: float | None = None
    weight_share: float | None = None
    """Part of those bytes that are weights, and so of the time of decode; the rest is the scan over KV."""


class MetricsReply(Reply, tag="metrics"):
    """Answer to `metrics`."""

    id: str
    text: str
    """In the text format of Prometheus, version 0.0.4."""
