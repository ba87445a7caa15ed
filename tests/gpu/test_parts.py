"""A dry run of the GPU script: every part at toy sizes, in the interpreter on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.main import PARTS
from tests.gpu.model_file import joined
from tests.gpu.report import PARTS as REPORTED

ROOT = Path(__file__).parents[2]
QUICK = {"env", "ceilings"}
NEEDS_MODEL = {"real"}


def run_part(part: str, work: Path, *options: str) -> dict[str, object]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(work / "cache")}
    command = [sys.executable, "-m", "tests.gpu.main", part, "--device", "cpu", "--work", str(work), "--seed", "5"]
    done = subprocess.run([*command, *options], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    result = json.loads((work / f"{part}.json").read_text())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return result


def marks(part: str) -> tuple[pytest.MarkDecorator, ...]:
    slow = () if part in QUICK else (pytest.mark.full,)
    return (*slow, pytest.mark.smollm2) if part in NEEDS_MODEL else slow


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [pytest.param(part, marks=marks(part)) for part in PARTS])
def test_a_part_runs_through(part: str, tmp_path: Path) -> None:
    result = run_part(part, tmp_path)
    assert "error" not in result
    rows = result.get("rows", [])
    assert isinstance(rows, list)
    assert part == "env" or rows
    assert [row for row in rows if row.get("ok") is False] == []


def test_the_script_bounds_every_part_a_little_later_than_the_part_itself() -> None:
    """All of it fits two calls of under ten minutes, and a quarter of an hour with two minutes to spare."""
    script = (ROOT / "tests/gpu/run.sh").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("limits=")]
    limits = {name: int(limit) for name, limit in (pair.split(":") for pair in line[8:-1].split())}
    assert list(limits) == list(PARTS) == list(REPORTED)
    assert all(limits[name] >= part.seconds + 14 for name, part in PARTS.items())
    assert PARTS["correctness"].seconds < 240
    assert sum(limits[name] for name in list(PARTS)[:6]) <= 490
    assert sum(limits.values()) <= 780


def test_a_part_that_dies_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    """The shell script with an interpreter that fails at one part: its failure is told, the rest is there."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *"main ceilings"*) kill -9 $$ ;; esac\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    out, work = tmp_path / "out", tmp_path / "work"
    command = ["bash", "tests/gpu/run.sh", "-c", "-o", str(out), "-w", str(work), "ceilings", "env"]
    (work / "site").mkdir(parents=True)
    (work / "site/.wheels").touch()  # nothing to install
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHON": str(fake)}, capture_output=True, text=True)
    results = json.loads((out / "results.json").read_text())
    assert done.returncode == 1
    assert results["ceilings"] == {"error": "did not end"}
    assert "torch" in results["env"]
    assert "| ceilings |  | did not end |" in done.stdout
    assert {path.name for path in out.iterdir()} == {"results.json", "results.md", "log.txt"}


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    command = ["bash", "tests/gpu/run.sh", "-c", "-o", str(tmp_path / "out"), "-w", str(tmp_path / "work"), "gem"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no part gem; known: env" in done.stderr


def test_a_model_is_joined_from_its_pieces_and_checked(tmp_path: Path) -> None:
    for name, content in {
        "first/model.part": b"abc",
        "second/model.part": b"defg",
        "first/model.name": b"m.gguf\n",
        "first/model.sha256": b"7d1a54127b222502f5b79b5fb0803061152a44f92b37e23c6527baf665d4da9a\n",
    }.items():
        path = tmp_path / "packed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert joined(tmp_path / "packed", tmp_path).read_bytes() == b"abcdefg"
    (tmp_path / "packed/second/model.part").write_bytes(b"defh")
    with pytest.raises(ValueError, match="the joined model has sha256"):
        joined(tmp_path / "packed", tmp_path)
