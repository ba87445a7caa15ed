"""The committed results of the long runs: whole runs, that held."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent / "results"


@pytest.mark.parametrize(("name", "field", "least"), [("fuzz", "inputs", 100_000), ("soak", "minutes", 10)])
def test_a_whole_run_held(name: str, field: str, least: float) -> None:
    found = json.loads((RESULTS / f"{name}.json").read_text())
    assert found["holds"] is True
    assert found[field] >= least
    assert found["date"]
    assert found["machine"]
