"""The offline benchmark: every phase of one model in an engine process of its own, several times.

Nothing else is asked of the machine meanwhile, and no daemon is needed. The engine is built as the settings say,
so that two runs with different settings compare what they change.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from inferd.bench.lines import LineChild

if TYPE_CHECKING:
    from inferd.engine.settings import WorkerSettings

DECODED = 64
COLD_PROMPT = 16
Note = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """Something to measure: a phase of `child` with its sizes, and where its values lie in the answer."""

    name: str
    phase: str
    sizes: dict[str, int]
    values: dict[str, str]
    """Name of a value in the answer ("" = the answer itself) to its unit."""

    @property
    def tokens(self) -> int:
        """Context of its longest sequence."""
        return self.sizes.get("prompt", self.sizes.get("context", 0)) + self.sizes.get("output", 1)


def cases() -> list[Case]:
    """Return the phases and sizes, those that warm everything up first."""
    rate = {"": "tokens/s"}
    batched = {"decode": "tokens/s", "total": "tokens/s"}
    mixed = {"total": "tokens/s", "ttft": "s", "tpot": "s", "worst_gap": "s"}
    return [
        *(Case(f"prefill {n}", "prefill", {"prompt": n}, rate) for n in (128, 512, 2048)),
        *(Case(f"decode at {n}", "decode", {"context": n, "output": DECODED}, rate) for n in (0, 512, 2048)),
        *(Case(f"{n} sequences", "batched", {"count": n, "prompt": 128, "output": 128}, batched) for n in (8, 32)),
        Case("mixed lengths", "mixed", {"count": 32, "prompt": 64, "output": 32}, mixed),
    ]


class Row(msgspec.Struct, frozen=True):
    """One quantity over all repeats."""

    case: str
    value: str
    """What of the case; empty where it has one quantity only."""
    unit: str
    median: float
    low: float
    high: float
    repeats: int

    @staticmethod
    def of(case: str, value: str, unit: str, samples: Sequence[float]) -> Row:
        return Row(case, value, unit, statistics.median(samples), min(samples), max(samples), len(samples))


class Report(msgspec.Struct, frozen=True):
    model: str
    machine: str
    shape: dict[str, int]
    """Sizes of the engine."""
    exactness: str
    rows: tuple[Row, ...]


def run(settings: WorkerSettings, machine: str, chosen: Sequence[Case], *, repeats: int, note: Note) -> Report:
    """Measure the cases that fit the model's context, then cold starts. Raises RuntimeError when the engine fails."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        settings.save(file)
        command = [sys.executable, "-P", "-m", "inferd.bench.child", str(file)]
        with closing(LineChild(command)) as child:
            ready = child.ready()
            fitting = [case for case in chosen if case.tokens <= ready["ready"]["max_context"]]
            rows = [row for case in fitting for row in _measure(child, case, repeats, note)]
            peak = child.ask({"phase": "decode", "seed": 0, "context": 1, "output": 2})["peak"]
        rows.append(Row.of("peak memory", "", "MB", [peak / 1e6]))
        starts = [_cold_start(command, seed) for seed in range(repeats)]
        rows.append(Row.of("cold start", "first token", "s", starts))
    return Report(Path(settings.path).name, machine, ready["ready"], ready["exactness"], tuple(rows))


def _measure(child: LineChild, case: Case, repeats: int, note: Note) -> list[Row]:
    """Run a case once unseen and `repeats` times for its rows."""
    samples: dict[str, list[float]] = {name: [] for name in case.values}
    for repeat in range(repeats + 1):
        note(f"{case.name}, {repeat} of {repeats}")
        answer: Any = child.ask({"phase": case.phase, "seed": repeat, **case.sizes})["value"]
        for name, values in samples.items():
            if repeat:
                values.append(answer[name] if name else answer)
    return [Row.of(case.name, name, case.values[name], values) for name, values in samples.items()]


def _cold_start(command: Sequence[str], seed: int) -> float:
    """Return the seconds from starting a process to its first token; files may be in the page cache."""
    start = time.monotonic()
    with closing(LineChild(command)) as child:
        child.ask({"phase": "prefill", "seed": seed, "prompt": COLD_PROMPT})
        return time.monotonic() - start
