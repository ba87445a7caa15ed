"""Goals and the tables that are made of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu.goals import at_least, at_most, check, row
from tests.gpu.report import BEGIN, END, gather, main, merged, placed, readme_table, table

RESULTS = {
    "env": {"gpu": "NVIDIA X", "torch": "2.11.0", "triton": "3.6.0"},
    "ceilings": {"copy_bytes_s": 4.25e12, "bf16_flop_s": 7.9e14, "rows": [{"case": "copy_bytes_s", "value": 4.25e12}]},
    "correctness": {"rows": [check("a", True, 1e-6), check("b", False, float("inf")), check("c", True, 0.0)]},
    "gemm": {"rows": [row("M1 w4", 2.61234, "times bf16", at_least(2.5)), row("M1 bf16", 12.0, "us")]},
    "model": {"rows": [row("0.6B", 23456.7, "tokens/s", at_least(21000, 25000))], "error": "Boom: a | b"},
}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (at_least(0.52, 0.62), 0.519, "missed"),
        (at_least(0.52, 0.62), 0.52, "reached 0.52"),
        (at_least(0.52, 0.62), 0.7, "reached 0.62"),
        (at_most(1.25), 1.26, "missed"),
        (at_most(1.25), 1.25, "reached 1.25"),
        (at_least(1), float("nan"), "missed"),
    ],
)
def test_a_goal_names_the_hardest_step_reached(goal: object, value: float, verdict: str) -> None:
    assert row("c", value, "u", goal)["verdict"] == verdict  # type: ignore[arg-type]


def test_the_table_shows_figures_and_what_failed() -> None:
    lines = table(RESULTS).splitlines()
    assert "| correctness | checks that hold | 2 |  |  | ok |" in lines
    assert "| correctness | b | inf |  |  | failed |" in lines
    assert not any(line.startswith("| correctness | a ") for line in lines)
    assert "| gemm | M1 w4 | 2.61 | times bf16 | >= 2.5 | reached 2.5 |" in lines
    assert "| model | 0.6B | 23,457 | tokens/s | >= 21000, then 25000 | reached 21000 |" in lines
    assert "| model |  | Boom: a \\| b |  |  | failed |" in lines
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_the_readme_gets_the_machine_and_the_goals(tmp_path: Path) -> None:
    text = readme_table(RESULTS)
    assert text.startswith(
        "NVIDIA X, torch 2.11.0, triton 3.6.0. "
        "Ceilings measured in the same run: 4.25 TB/s copied, 790 TFLOP/s in bf16.\n\n| what |"
    )
    assert [line.split(" | ")[0] for line in text.splitlines()[4:]] == ["| M1 w4", "| 0.6B"]
    readme = tmp_path / "README.md"
    readme.write_text(f"# A\n{BEGIN}\nold\n{END}\n# B\n")
    (tmp_path / "r.json").write_text(json.dumps(RESULTS))
    assert main(["readme", str(tmp_path / "r.json"), str(readme)]) == 0
    assert readme.read_text() == f"# A\n{BEGIN}\n\n{text}\n{END}\n# B\n"
    assert placed(readme.read_text(), text) == readme.read_text()
    with pytest.raises(ValueError, match="lacks the marks"):
        placed("# A\n", text)


def test_results_of_two_calls_are_merged_in_the_order_of_the_parts(tmp_path: Path) -> None:
    first = {"gemm": RESULTS["gemm"], "env": {"gpu": "old"}}
    found = merged([first, {"model": RESULTS["model"], "env": RESULTS["env"]}])
    assert list(found) == ["env", "gemm", "model"]
    assert found["env"] == RESULTS["env"]


def test_a_part_with_a_log_alone_did_not_end(tmp_path: Path) -> None:
    (tmp_path / "gemm.json").write_text(json.dumps(RESULTS["gemm"]))
    for part in ("gemm", "model"):
        (tmp_path / f"{part}.log").write_text("")
    assert gather(tmp_path) == {"gemm": RESULTS["gemm"], "model": {"error": "did not end"}}
    assert main(["gather", str(tmp_path), str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/results.json").read_text()) == gather(tmp_path)
