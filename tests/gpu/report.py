"""One JSON and one table from the results of all parts; goals are fractions of ceilings of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_report(folder: Path, parts: list[str]) -> str:
    """Write `results.json` and `results.md` and return the table. A part without a file did not end."""
    results: dict[str, Any] = {}
    for part in parts:
        path = folder / f"{part}.json"
        results[part] = json.loads(path.read_text()) if path.exists() else {"error": "did not end"}
    (folder / "results.json").write_text(json.dumps(results, indent=1))
    lines = ["| part | case | measured | of | goal |", "| --- | --- | --- | --- | --- |"]
    for part, result in results.items():
        if "error" in result:
            lines.append(f"| {part} | | {result['error'][:80]} | | |")
        for row in result.get("rows", []):
            goal = row.get("goal", "")
            cells = (part, row["case"], _text(row.get("value")), row.get("of", ""), goal)
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    table = "\n".join(lines) + "\n"
    (folder / "results.md").write_text(table)
    return table


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def ceiling(name: str, folder: Path) -> float | None:
    """Return a ceiling measured earlier in the same run."""
    path = folder / "ceilings.json"
    return json.loads(path.read_text()).get(name) if path.exists() else None
