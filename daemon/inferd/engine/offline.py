"""Run requests through an engine in this process, without daemon or sockets: benchmarks and harnesses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.engine.engine import Engine
    from inferd.link import SeqError, SeqOutput, StepReport, Submit
    from inferd_client.protocol import TokenLogprob


@dataclass(slots=True)
class Result:
    """What one choice of one request gave, and when."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: str | None = None
    error: SeqError | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    arrival: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each token arrived."""

    @property
    def ttft(self) -> float:
        return self.times[0] - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean time of each token after the first; None for a single token."""
        return (self.times[-1] - self.times[0]) / (len(self.ids) - 1) if len(self.ids) > 1 else None


Results = dict[tuple[str, int], Result]
"""By (request key, choice)."""


def run(
    engine: Engine,
    requests: Sequence[Submit],
    *,
    arrivals: Sequence[float] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> Results:
    """Submit `requests` (at `arrivals` seconds from now, default at once) and step until all are done."""
    start = time.monotonic()
    waiting = sorted(zip(arrivals or [0.0] * len(requests), range(len(requests)), strict=True))
    results: Results = {}
    while waiting or engine.has_work:
        while waiting and start + waiting[0][0] <= time.monotonic():
            due, index = waiting.pop(0)
            _enter(engine, requests[index], start + due, results)
        if not engine.has_work:
            time.sleep(max(0.0, start + waiting[0][0] - time.monotonic()) if waiting else 0.0)
            continue
        report = engine.step()
        now = time.monotonic()
        for output in report.outputs:
            _record(results[output.key, output.choice], output, now)
        for error in report.errors:
            for (key, _), result in results.items():
                if key == error.key:
                    result.error = error
        if on_step is not None:
            on_step(report)
    return results


def _enter(engine: Engine, request: Submit, arrival: float, results: Results) -> None:
    for choice in range(request.sampling.n):
        results[request.key, choice] = Result(arrival=arrival)
    engine.submit(request)


def _record(result: Result, output: SeqOutput, now: float) -> None:
    result.ids.extend(output.ids)
    result.logprobs.extend(output.logprobs or ())
    result.prompt_logprobs.extend(output.prompt_logprobs or ())
    result.finish = output.finish or result.finish
    result.cached_tokens = output.cached_tokens or result.cached_tokens
    result.preemptions = max(result.preemptions, output.preemptions)
    result.drafted = max(result.drafted, output.drafted)
    result.accepted = max(result.accepted, output.accepted)
    result.times.extend([now] * len(output.ids))
