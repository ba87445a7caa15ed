"""CASES.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LINES = [line for line in (TESTS / "CASES.md").read_text().splitlines() if re.match(r"\| \w", line)]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w:]+)`", "\n".join(LINES))))


def test_every_line_names_a_test_or_waits():
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
    rows = [row for row in cells if row[0] not in ("case", "harness")]
    assert len(rows) > 80
    assert len({row[0] for row in rows}) == len(rows), "a case has two lines"
    assert [row[0] for row in rows if len(row) != 3 or not (row[2] == "later" or "::" in row[2])] == []


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_the_tests_exist(file: str):
    defined: set[str] = set()
    for node in ast.parse((TESTS / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            defined |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defined.add(node.name)
    assert {name for of, name in NAMED if of == file} - defined == set()
