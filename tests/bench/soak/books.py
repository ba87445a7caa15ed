"""What the actors of a soak note: every request that was begun, and how it ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from inferd_client import Completion, DaemonError, InferdError, RequestTimeout


class Books:
    """Shared by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.timings: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": [], "status": []}
        self.tokens = 0

    @contextmanager
    def request(self, actor: str, *allowed: str) -> Iterator[list[str]]:
        """Count one request; how it ended is what the block appends, or the code of the error it raises.

        An error code that is not among `allowed`, and any other exception, is noted as wrong.
        """
        with self._lock:
            self.begun[actor] += 1
        outcome: list[str] = []
        try:
            yield outcome
            end = outcome[-1] if outcome else "done"
        except RequestTimeout:
            end = "unanswered"
        except DaemonError as error:
            end = str(error.code)
            if end not in allowed:
                self.note_wrong(f"{actor}: {end}: {error}")
        except InferdError as error:
            end = type(error).__name__
            if end not in allowed:
                self.note_wrong(f"{actor}: {end}: {error}")
        except Exception as error:
            end = type(error).__name__
            self.note_wrong(f"{actor}: {end}: {error}")
        with self._lock:
            self.ended[actor, end] += 1

    def note_wrong(self, text: str) -> None:
        with self._lock:
            if len(self.wrong) < 50:
                self.wrong.append(text[:300])

    def note_times(self, result: Completion) -> None:
        times = result.timings
        with self._lock:
            self.tokens += sum(len(choice.ids) for choice in result.choices)
            for name in ("ttft", "tpot", "e2e"):
                value = getattr(times, f"{name}_s", None)
                if value is not None:
                    self.timings[name].append(value)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        with self._lock:
            self.timings[name].append(time.monotonic() - start)

    @property
    def unanswered(self) -> int:
        return sum(self.begun.values()) - sum(self.ended.values()) + self._ended_as("unanswered")

    def _ended_as(self, end: str) -> int:
        return sum(count for (_, how), count in self.ended.items() if how == end)

    def summary(self) -> dict[str, Any]:
        ends: dict[str, dict[str, int]] = {}
        for (actor, end), count in sorted(self.ended.items()):
            ends.setdefault(actor, {})[end] = count
        return {
            "requests": sum(self.begun.values()),
            "unanswered": self.unanswered,
            "tokens": self.tokens,
            "ends": ends,
            "wrong": self.wrong,
            "latency_ms": {name: quantiles(values) for name, values in self.timings.items()},
        }


def quantiles(values: Sequence[float]) -> dict[str, float | int]:
    if not values:
        return {"count": 0}
    found = np.quantile(values, [0.5, 0.95, 0.99, 1.0], method="inverted_cdf")
    named = zip(("p50", "p95", "p99", "max"), found, strict=True)
    return {"count": len(values)} | {name: round(1000 * float(value), 2) for name, value in named}
