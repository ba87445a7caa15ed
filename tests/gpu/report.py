"""One JSON and one table from the results of all parts, and the README's table from that JSON.

python -m tests.gpu.report gather WORK OUT         results.json and results.md of what has run
python -m tests.gpu.report merge OUT JSON...       the same, of several calls; later ones win, part by part
python -m tests.gpu.report readme JSON [README]    print the table of goals, or put it between README's marks
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any]]
"""By part."""

PARTS = ("env", "ceilings", "correctness", "engine", "attention", "gemm", "model", "real", "monitor")
BEGIN, END = "<!-- gpu table: tests/gpu/report.py -->", "<!-- end of gpu table -->"
UNITS = {"copy_bytes_s": (1e12, "TB/s copied"), "bf16_flop_s": (1e12, "TFLOP/s in bf16")} | {
    "fp8_flop_s": (1e12, "TFLOP/s in fp8")
}


def gather(work: Path) -> Results:
    """Read what the parts left. One without a file but with a log did not end."""
    results: Results = {}
    for part in PARTS:
        path = work / f"{part}.json"
        if path.exists():
            results[part] = json.loads(path.read_text())
        elif (work / f"{part}.log").exists():
            results[part] = {"error": "did not end"}
    return results


def write(results: Results, out: Path) -> str:
    """Write `results.json` and `results.md`; return the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    (out / "results.md").write_text(text)
    return text


def table(results: Results) -> str:
    """Every figure, and of checks those that failed with a count of the rest."""
    lines = _head("part", "case", "measured", "of", "goal", "verdict")
    for part, result in results.items():
        if "error" in result:
            lines.append(_line(part, "", result["error"][:200], "", "", "failed"))
        rows = result.get("rows", [])
        held = sum(row.get("ok") is True for row in rows)
        if held:
            lines.append(_line(part, "checks that hold", held, "", "", "ok"))
        for row in rows:
            if row.get("ok") is not True:
                verdict = "failed" if row.get("ok") is False else row.get("verdict", "")
                cells = (row["case"], _text(row.get("value")), row.get("of", ""), row.get("goal", ""), verdict)
                lines.append(_line(part, *cells))
    return "\n".join(lines) + "\n"


def readme_table(results: Results) -> str:
    """The machine in a line, then every figure that has a goal."""
    env, ceilings = results.get("env", {}), results.get("ceilings", {})
    machine = [env.get("gpu", ""), *(f"{name} {env[name]}" for name in ("torch", "triton") if name in env)]
    found = [f"{ceilings[name] / scale:.3g} {unit}" for name, (scale, unit) in UNITS.items() if name in ceilings]
    lines = [f"{', '.join(filter(None, machine))}. Ceilings measured in the same run: {', '.join(found)}.", ""]
    lines += _head("what", "measured", "of", "goal", "verdict")
    lines += [
        _line(row["case"], _text(row["value"]), row.get("of", ""), row["goal"], row.get("verdict", ""))
        for row in _goals(results)
    ]
    return "\n".join(lines) + "\n"


def placed(readme: str, text: str) -> str:
    """Put a table between the marks of a README. Raises ValueError where they are missing."""
    before, found, rest = readme.partition(BEGIN)
    _old, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the README lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _goals(results: Results) -> Iterator[dict[str, Any]]:
    for result in results.values():
        yield from (row for row in result.get("rows", []) if "goal" in row and "ok" not in row)


def _head(*names: str) -> list[str]:
    return [_line(*names), _line(*["---"] * len(names))]


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def merged(all_results: Iterable[Results]) -> Results:
    """Join results of several calls in the order of the parts."""
    found: Results = {}
    for results in all_results:
        found |= results
    return {part: found[part] for part in PARTS if part in found}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["gather", work, out]:
            write(gather(Path(work)), Path(out))
        case ["merge", out, *files] if files:
            print(write(merged(json.loads(Path(file).read_text()) for file in files), Path(out)), end="")
        case ["readme", file]:
            print(readme_table(json.loads(Path(file).read_text())), end="")
        case ["readme", file, readme]:
            text = readme_table(json.loads(Path(file).read_text()))
            Path(readme).write_text(placed(Path(readme).read_text(), text))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
