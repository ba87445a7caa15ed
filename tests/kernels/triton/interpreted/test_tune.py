"""Tuning picks the fastest candidate that runs, and writes what launches read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from triton.runtime.errors import OutOfResources

from inferd_kernels.triton.tiling import read
from inferd_kernels.triton.tune import Case, Sizes, best_of, combinations, tune, write

SMALL = Sizes(tokens=20, context=40, sequences=2, columns=32, hidden=128)


def test_the_fastest_candidate_that_runs_wins() -> None:
    tried: list[int] = []

    def launch(tiles: object) -> None:
        size = dict(tiles)["TILE"]  # type: ignore[call-overload]
        tried.append(size)
        if size == 64:
            raise OutOfResources(10, 5, "shared memory")

    def measure(run: Callable[[], object]) -> float:
        run()
        return abs(tried[-1] - 33)

    case = Case("k", "c", combinations(TILE=(16, 32, 64, 128)), launch)
    assert best_of(case, measure) == ({"TILE": 32}, 1)
    assert tried == [16, 32, 64, 128]
    assert best_of(case._replace(candidates=combinations(TILE=(64,))), measure) is None


def test_every_case_launches_and_the_table_is_read_back(tmp_path: Path) -> None:
    """At toy sizes each workload runs once; its time is that of the first candidate."""
    heard: list[str] = []
    ran: list[int] = []

    def measure(run: Callable[[], object]) -> float:
        if len(ran) == len(heard):
            run()
            ran.append(1)
        return 1.0

    table = tune("cpu", measure, sizes=SMALL, on_case=lambda name, _tiles, _seconds: heard.append(name))
    assert len(ran) == len(heard) == sum(len(cases) for cases in table.values()) == 14
    assert set(table) <= set(read("sm_90"))
    write(table, tmp_path / "GPU.json")
    assert json.loads((tmp_path / "GPU.json").read_text()) == table
