"""A run as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from inferd.bench.serve.summary import LATENCIES, SHARES
from inferd_tui.units import NA, number, percent, table

if TYPE_CHECKING:
    from inferd.bench.serve.load import Outcome
    from inferd.bench.serve.spent import Spent
    from inferd.bench.serve.statistics import Estimate
    from inferd.bench.serve.summary import Summary

COLUMNS = ("mean", *SHARES)


def render(summary: Summary, spent: Spent) -> Iterator[str]:
    """Yield the lines of one run; intervals are 95 %."""
    failed = ", ".join(f"{count} {code}" for code, count in sorted(summary.failed.items()))
    yield f"{summary.load}: {summary.requests} requests in {summary.duration:.1f} s, failed: {failed or 'none'}"
    yield ""
    rows = [
        [f"{name.upper()} ms", *(_interval(summary.latency[name][column], 1000) for column in COLUMNS)]
        for name in LATENCIES
    ]
    yield from table(("LATENCY", *(column.upper() for column in COLUMNS)), rows)
    yield ""
    yield from table(("RATE", "A SECOND"), list(_rates(summary)))
    yield ""
    yield from _notes(summary)
    yield from _money(spent, summary.output_tokens)


def render_sweep(summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield one line a run, to compare loads."""
    headers = ("LOAD", "TTFT P50 ms", "TTFT P99 ms", "TPOT P50 ms", "TPOT P99 ms", "TOKENS/S", "GOOD TOKENS/S", "GOOD")
    rows = [
        [
            s.load,
            *(_interval(s.latency[name][share], 1000) for name in ("ttft", "tpot") for share in ("p50", "p99")),
            _interval(s.output_tokens_s),
            _interval(s.goodput.tokens_s if s.goodput else None),
            _interval(s.goodput.share if s.goodput else None),
        ]
        for s in summaries
    ]
    yield from table(headers, rows)


def request_row(outcome: Outcome) -> dict[str, Any]:
    """Return one request for a file: seconds after the start of its run."""
    return {
        "due": outcome.due,
        "sent": outcome.sent,
        "end": outcome.end,
        "prompt_tokens": len(outcome.planned.prompt),
        "max_tokens": outcome.planned.output,
        "output_tokens": outcome.num_tokens,
        "ttft": outcome.ttft,
        "tpot": outcome.tpot,
        "error": outcome.error,
        "timings": outcome.timings,
        "cost": outcome.cost,
    }


def _rates(summary: Summary) -> Iterator[list[str]]:
    yield ["output tokens", _interval(summary.output_tokens_s)]
    yield ["prompt and output tokens", _interval(summary.total_tokens_s)]
    yield ["requests", _interval(summary.requests_s)]
    if summary.goodput is not None:
        yield [f"good requests ({_bounds(summary)})", _interval(summary.goodput.requests_s)]
        yield ["output tokens of good requests", _interval(summary.goodput.tokens_s)]


def _notes(summary: Summary) -> Iterator[str]:
    if summary.goodput is not None and summary.goodput.share is not None:
        share = summary.goodput.share.scaled(100)
        yield f"good: {_interval(share)} % of all requests, failed ones included"
    cached = percent(summary.cached_tokens, summary.prompt_tokens)
    accepted = percent(summary.accepted_tokens, summary.drafted_tokens)
    yield f"tokens: {number(summary.prompt_tokens)} prompt ({cached} cached), {number(summary.output_tokens)} output"
    yield f"drafts accepted: {accepted}"
    yield f"the generator sent at most {1000 * summary.lag:.1f} ms late; latencies count from when a request was due"


def _money(spent: Spent, output_tokens: int) -> Iterator[str]:
    joules = spent.joules
    per_token = f", {joules / output_tokens:.3g} J a token" if joules is not None and output_tokens else ""
    yield f"energy: {NA if joules is None else f'{joules:,.1f} J'}{per_token}"
    if spent.per_million is None:
        yield f"cost per million good output tokens: {NA}"
        return
    parts = {"prefill": spent.prefill, "decode": spent.decode, "idle": spent.idle}
    total = sum(part or 0.0 for part in parts.values())
    shares = ", ".join(f"{name} {percent(part, total)}" for name, part in parts.items())
    yield f"cost per million good output tokens: {spent.per_million:.4g} {spent.currency} ({spent.source}; {shares})"


def _bounds(summary: Summary) -> str:
    named = {"TTFT": summary.bounds.ttft, "TPOT": summary.bounds.tpot}
    return ", ".join(f"{name} <= {1000 * value:g} ms" for name, value in named.items() if value is not None)


def _interval(found: Estimate | None, factor: float = 1.0) -> str:
    if found is None:
        return NA
    scaled = found.scaled(factor)
    if scaled.low is None or scaled.high is None:
        return _short(scaled.value)
    return f"{_short(scaled.value)} ({_short(scaled.low)} to {_short(scaled.high)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
