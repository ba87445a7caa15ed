"""Plots of runs, drawn without a display."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.bench.serve import plot
from inferd.bench.serve.load import Outcome
from inferd.bench.serve.plan import Planned
from inferd.bench.serve.run import Run
from inferd.bench.serve.spent import Spent
from inferd.bench.serve.summary import Bounds, summarize


def run_of(load: str, outcomes: list[Outcome], bounds: Bounds) -> Run:
    return Run(summarize(load, outcomes, bounds), Spent(), outcomes)


def outcome(due: float, *times: float, error: str = "") -> Outcome:
    tokens = [(time, 1) for time in times]
    return Outcome(Planned(0, [1], 4), due, sent=due, tokens=tokens, end=times[-1] if times else due, error=error)


ANSWERED = [outcome(0.1 * i, 0.1 * i + 0.05, 0.1 * i + 0.09, 0.1 * i + 0.2) for i in range(8)]


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(ttft=0.06, tpot=0.01)])
@pytest.mark.parametrize(
    "runs", [[ANSWERED], [ANSWERED, ANSWERED[:3]], [[outcome(0.0, error="overloaded")]], [[], ANSWERED]], ids=len
)
def test_any_runs_make_a_picture(tmp_path: Path, runs: list[list[Outcome]], bounds: Bounds) -> None:
    path = tmp_path / "p.png"
    plot.save(path, "title", [run_of(f"{i} a second", found, bounds) for i, found in enumerate(runs)])
    assert path.read_bytes().startswith(b"\x89PNG")
