"""The last run of `make test-full` as a page: `python -m tests.full_report JUNIT_XML > tests/FULL.md`."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

HEAD = """# The last whole run

`make test-full` writes this page: every test, with the large grids whole.

"""


def main(path: str) -> None:
    """Print the page. Exits with 1 where a test failed, so that make stops."""
    suite = ElementTree.parse(path).getroot().find("testsuite")
    if suite is None:
        raise SystemExit(f"{path}: no test suite in it")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    minutes, cases = float(suite.get("time", 0)) / 60, suite.findall("testcase")
    print(HEAD + _table(suite, counts, minutes))
    print("| tests of | number | minutes of processor |\n| --- | --- | --- |")
    for name, number, seconds in _by_folder(cases):
        print(f"| {name} | {number} | {seconds / 60:.1f} |")
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    for case in bad:
        print(f"\nFailed: `{case.get('classname')}::{case.get('name')}`")
    raise SystemExit(bool(bad))


def _table(suite: ElementTree.Element, counts: dict[str, int], minutes: float) -> str:
    date = datetime.fromisoformat(suite.get("timestamp", "")).date()
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    rows = {
        "date": date,
        "commit": _commit(),
        "machine": f"{_processor()}, Python {platform.python_version()}",
        "passed": passed,
        "failed": counts["failures"] + counts["errors"],
        "skipped": counts["skipped"],
        "minutes": f"{minutes:.0f}",
    }
    return "| | |\n| --- | --- |\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def _by_folder(cases: list[ElementTree.Element]) -> list[tuple[str, int, float]]:
    numbers: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for case in cases:
        folder = case.get("classname", "").split(".")[1]
        numbers[folder] += 1
        seconds[folder] += float(case.get("time", 0))
    return [(folder, numbers[folder], seconds[folder]) for folder in sorted(numbers)]


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.machine()


if __name__ == "__main__":
    main(sys.argv[1])
