"""A dry run of the GPU script: every part at toy sizes, in the interpreter on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.main import PARTS
from tests.gpu.report import ceiling, write_report

ROOT = Path(__file__).parents[2]
QUICK = {"env", "ceilings", "correctness"}


def run_part(part: str, out: Path) -> dict[str, object]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(out / "cache")}
    command = [sys.executable, "-m", "tests.gpu.main", part, "--device", "cpu", "--out", str(out), "--seed", "5"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    result = json.loads((out / f"{part}.json").read_text())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return result


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [pytest.param(p, marks=() if p in QUICK else pytest.mark.full) for p in PARTS])
def test_a_part_runs_through(part: str, tmp_path: Path) -> None:
    result = run_part(part, tmp_path)
    assert "error" not in result
    rows = result.get("rows", [])
    assert isinstance(rows, list)
    assert part == "env" or rows
    assert [row for row in rows if row.get("ok") is False] == []


def test_the_report_holds_what_ended_and_names_what_did_not(tmp_path: Path) -> None:
    rows = [{"case": "x", "value": 0.51234, "of": "copy bandwidth", "goal": "0.85"}]
    (tmp_path / "gemm.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "ceilings.json").write_text(json.dumps({"copy_bytes_s": 4.2e12}))
    table = write_report(tmp_path, ["ceilings", "gemm", "model"])
    assert "| gemm | x | 0.512 | copy bandwidth | 0.85 |" in table
    assert "| model | | did not end | | |" in table
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["gemm"]["rows"] == rows
    assert ceiling("copy_bytes_s", tmp_path) == 4.2e12


def test_the_script_gives_every_part_a_limit() -> None:
    script = (ROOT / "tests/gpu/run.sh").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("limits=")]
    limits = dict(pair.split(":") for pair in line.removeprefix("limits=").strip('"').split())
    assert list(limits) == list(PARTS)
    assert all(int(limits[part]) >= seconds for part, seconds in PARTS.items())
