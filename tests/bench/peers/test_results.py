"""Ratios are taken within a run and a repeat, and goals are judged on their medians."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.peers.contestant import METRICS
from tests.bench.peers.goals import ANY, Bound, Goal, contenders, goal_rows, goals
from tests.bench.peers.results import Run, Sample, best, load, ratio, save, table, values


def run(values: dict[tuple[str, str], list[float]]) -> Run:
    samples = [Sample(c, m, i + 1, v) for (c, m), series in values.items() for i, v in enumerate(series)]
    return Run("a machine", "now", [], samples)


RUNS = [
    run(
        {
            ("inferd Q4_1", "decode0"): [200, 220, 90],
            ("llama.cpp Q4_1", "decode0"): [100, 100, 45],
            ("OpenVINO Q8_0", "decode0"): [80, 81],
            ("inferd Q4_1", "TTFT p95"): [130, 120],
            ("llama.cpp Q4_1", "TTFT p95"): [600, 640],
        }
    ),
    run({("inferd Q4_1", "decode0"): [400], ("llama.cpp Q4_1", "decode0"): [400]}),
]


def test_ratios_pair_what_ran_together() -> None:
    found = ratio(RUNS, "decode0", "inferd Q4_1", "llama.cpp Q4_1")
    assert found is not None
    assert (found.median, found.low, found.high) == (2.0, 1.0, 2.2)
    assert ratio(RUNS, "decode0", "inferd Q4_1", "nobody") is None
    assert ratio(RUNS[1:], "decode0", "inferd Q4_1", "OpenVINO Q8_0") is None


def test_the_best_is_the_greatest_rate_or_the_least_time() -> None:
    assert best(RUNS[:1], "decode0", ["llama.cpp Q4_1", "OpenVINO Q8_0"]) == "llama.cpp Q4_1"
    assert best(RUNS[:1], "TTFT p95", ["inferd Q4_1", "llama.cpp Q4_1"]) == "inferd Q4_1"
    assert best(RUNS, "decode0", ["nobody"]) is None


@pytest.mark.parametrize(
    ("metric", "reach", "then", "verdict"),
    [
        ("decode0", 1.5, 1.9, "beyond"),
        ("decode0", 2.0, 2.5, "reached"),
        ("decode0", 2.1, 2.5, "missed"),
        ("TTFT p95", 0.26, 0.21, "beyond"),
        ("TTFT p95", 0.26, 0.15, "reached"),
        ("TTFT p95", 0.19, 0.15, "missed"),
    ],
)
def test_goals_are_judged_in_the_right_direction(metric: str, reach: float, then: float, verdict: str) -> None:
    (*_, row) = goal_rows(RUNS, [Goal(metric, "inferd Q4_1", ANY, reach, then)])
    assert row.endswith(f"| {verdict} |")
    assert "llama.cpp Q4_1" in row


def test_a_goal_that_asks_for_no_more_is_reached_at_most() -> None:
    (*_, row) = goal_rows(RUNS, [Goal("decode0", "inferd Q4_1", ANY, 1.5, None)])
    assert "| 1.5x |" in row
    assert row.endswith("| reached |")


def test_who_may_decide_a_goal_goes_on() -> None:
    turn = [
        Sample(contestant, metric, 0, value)
        for metric, values in {
            "decode0": {"inferd Q4_1": 200, "llama.cpp Q4_1": 90, "llama.cpp Q8_0": 150, "sweep Q4_1": 300},
            "batch8": {"inferd Q4_1": 700, "llama.cpp Q4_0": 390, "OpenVINO Q8_0": 400, "OpenVINO F16": 300},
            "TTFT p95": {"inferd Q4_1": 100, "llama.cpp Q4_1": 600, "llama.cpp Q4_0": 500},
            "cold start": {"inferd Q4_1": 2, "inferd Q4_0": 2, "OpenVINO F16": 5},
        }.items()
        for contestant, value in values.items()
    ]

    def going(metric: str) -> set[str]:
        return contenders([sample for sample in turn if sample.metric == metric], goals(), near=0.85)

    assert going("decode0") == {"inferd Q4_1", "llama.cpp Q4_1", "sweep Q4_1"}  # a goal names the same file
    assert going("batch8") == {"inferd Q4_1", "llama.cpp Q4_0", "OpenVINO Q8_0"}
    assert going("TTFT p95") == {"inferd Q4_1", "llama.cpp Q4_0"}
    assert going("cold start") == {"inferd Q4_1"}


def test_a_turn_that_does_not_count_serves_those_who_have_no_other() -> None:
    samples = [Sample("inferd Q4_1", "batch8", i, v) for i, v in enumerate([600, 700, 720])]
    samples += [Sample("llama.cpp Q4_0", "batch8", i, v) for i, v in enumerate([390, 350, 360])]
    runs = [Run("a machine", "now", [], [*samples, Sample("OpenVINO F16", "batch8", 0, 380)])]
    assert list(values(runs, "inferd Q4_1", "batch8").values()) == [700, 720]
    assert best(runs, "batch8", ["llama.cpp Q4_0", "OpenVINO F16"]) == "llama.cpp Q4_0"
    dropped = ratio(runs, "batch8", "inferd Q4_1", "OpenVINO F16")
    assert dropped is not None
    assert dropped.median == pytest.approx(600 / 380)
    kept = ratio(runs, "batch8", "inferd Q4_1", "llama.cpp Q4_0")
    assert kept is not None
    assert (kept.low, kept.high) == (2.0, 2.0)


def test_what_was_not_measured_has_no_row() -> None:
    assert len(list(goal_rows(RUNS, [Goal("batch8", "inferd Q4_1", ANY, 1, 1), Bound("cold start", 4, 2.5)]))) == 2


@pytest.mark.parametrize(("value", "verdict"), [(2.0, "beyond"), (3.0, "reached"), (5.0, "missed")])
def test_bounds_are_judged_alone(value: float, verdict: str) -> None:
    (*_, row) = goal_rows([run({("inferd Q4_1", "cold start"): [value]})], [Bound("cold start", 4, 2.5)])
    assert row.endswith(f"| {verdict} |")


def test_the_table_has_everybody_and_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    save(tmp_path / "runs.json", RUNS)
    again = load([tmp_path / "runs.json"])
    assert again == RUNS
    rows = list(table(again))
    assert len(rows) == 2 + 3 + 2
    assert all(row.count("|") == 7 for row in rows)
    assert {s.metric for r in RUNS for s in r.samples} <= METRICS.keys()
