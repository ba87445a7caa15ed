"""All counters, latency windows and histograms of the daemon. Names follow vLLM's with the prefix `inferd_`."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from inferd.metrics.histogram import SECONDS, TOKENS, Buckets, Histogram
from inferd.metrics.latency import LatencyWindow
from inferd_client.protocol import Latency, Timings, Usage

if TYPE_CHECKING:
    from inferd.link import StepStats

LATENCIES = {
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "ttft": "time_to_first_token_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
    "decode": "step_decode_seconds",
    "verify": "step_verify_seconds",
}
"""Names in `status`, and those of their histograms."""
SIZES = ("request_prompt_tokens", "request_generation_tokens")
REQUEST_TIMES = ("queue", "prefill", "ttft", "tpot", "e2e")

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """One of these for the whole daemon; the front's thread owns it."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._windows = {name: LatencyWindow() for name in LATENCIES}
        self._histograms = {name: Histogram(SECONDS) for name in LATENCIES.values()}
        self._histograms |= {name: Histogram(TOKENS) for name in SIZES}
        self._completions: deque[float] = deque(maxlen=256)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter; each set of labels has its own."""
        family = self._counters.setdefault(name, {})
        key = tuple(labels.items())
        family[key] = family.get(key, 0) + amount

    def record(self, name: str, value: float, now: float) -> None:
        """Enter a latency."""
        self._windows[name].record(value, now)
        self._histograms[LATENCIES[name]].record(value)

    def finished(self, reason: str, measured: Timings, usage: Usage, now: float) -> None:
        """Note the end of a request that was served; its latencies count where it gave a token."""
        self.count("request_success_total", finished_reason=reason)
        self.count("prompt_tokens_total", usage.prompt_tokens)
        self._completions.append(now)
        if measured.ttft_s is None:
            return
        self._histograms["request_prompt_tokens"].record(usage.prompt_tokens)
        self._histograms["request_generation_tokens"].record(usage.completion_tokens)
        for name in REQUEST_TIMES:
            value = getattr(measured, f"{name}_s")
            if value is not None:
                self.record(name, value, now)

    def step(self, stats: StepStats, previous: StepStats | None) -> None:
        """Add one step of an engine; `previous` is the last one of the same engine process."""
        for counter, field in _INCREMENTS:
            self.count(counter, getattr(stats, field))
        if stats.overlap is not None:
            self.count("engine_steps_total", overlap=stats.overlap)
        if stats.decode_s > 0:
            phase = "verify" if stats.verifying else "decode"
            num_steps = 1 + stats.later_steps
            for _ in range(num_steps):
                self.record(phase, stats.decode_s / num_steps, stats.now)
            weights = weight_share(stats)
            self.count("decode_weight_seconds_total", stats.decode_s * weights)
            self.count("decode_kv_seconds_total", stats.decode_s * (1 - weights))
        for counter, field in _TOTALS:
            self.count(counter, getattr(stats, field) - (getattr(previous, field) if previous else 0))

    def retry_after_ms(self, waiting: int, now: float) -> int:
        """Guess when a place in a full queue is free again, from the recent rate of completions."""
        recent = [when for when in self._completions if when > now - 10]
        if not recent:
            return 1000
        rate = len(recent) / max(now - recent[0], 0.1)
        return int(min(30_000, max(50, 1000 * math.sqrt(waiting) / rate)))

    def latencies(self, now: float) -> dict[str, Latency]:
        return {name: window.summary(now) for name, window in self._windows.items()}

    def families(self) -> dict[str, dict[Labels, float]]:
        """Return a copy of all counters by name and labels."""
        return {name: dict(family) for name, family in self._counters.items()}

    def histograms(self) -> dict[str, Buckets]:
        return {name: histogram.read() for name, histogram in self._histograms.items()}

    @property
    def counters(self) -> dict[str, float]:
        """All counters under their Prometheus names, labels included."""
        return {
            f"inferd_{name}{_spelled(labels)}": value
            for name, family in self._counters.items()
            for labels, value in family.items()
        }


def weight_share(stats: StepStats) -> float:
    """Return the part of the decode rows' bytes that are weights; all where nothing is known of KV."""
    read = stats.weight_bytes + stats.kv_bytes
    return stats.weight_bytes / read if read else 1.0


def _spelled(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


_INCREMENTS = (
    ("prefill_tokens_total", "prefill_tokens"),
    ("decode_tokens_total", "decode_tokens"),
    ("prefill_seconds_total", "prefill_s"),
    ("decode_seconds_total", "decode_s"),
    ("prefill_flops_total", "prefill_flops"),
    ("decode_weight_bytes_total", "weight_bytes"),
    ("decode_kv_bytes_total", "kv_bytes"),
    ("spec_decode_num_drafts_total", "verifying"),
    ("spec_decode_num_draft_tokens_total", "drafted"),
    ("spec_decode_num_accepted_tokens_total", "accepted"),
    ("spec_decode_num_emitted_tokens_total", "emitted"),
)
_TOTALS = (
    ("num_preemptions_total", "preemptions"),
    ("prefix_cache_queries_total", "prefix_queries"),
    ("prefix_cache_hits_total", "prefix_hits"),
)
