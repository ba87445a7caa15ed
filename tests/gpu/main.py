"""Run one part, or put the results of all together: `python -m tests.gpu.main PART --work FOLDER`."""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from tests.gpu.bench import Bench


class Part(NamedTuple):
    seconds: float
    """It starts nothing new after; `run.sh` ends it some time later."""
    workers: int = 1
    """Processes that share its cases: most of the time goes into compiling kernels, on one core each."""
    rehearsals: int = 0
    """Processes that run its cases once before one process measures them alone, so that it finds kernels compiled."""


PARTS = {
    "env": Part(15),
    "ceilings": Part(20),
    "correctness": Part(180, workers=8),
    "engine": Part(60, workers=6),
    "attention": Part(70, rehearsals=6),
    "gemm": Part(50, rehearsals=6),
    "model": Part(140, rehearsals=4),
    "real": Part(50, workers=5),
    "monitor": Part(55),
}
"""In the order they run."""
DRY = 3
"""Times as long on a CPU: the interpreter is slow."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.0, help="0 = the part's own")
    parser.add_argument("--seed", type=int, default=0, help="0 = a fresh one, which is reported")
    parser.add_argument("--share", default="", help="INDEX/COUNT of the cases; all in this process")
    parser.add_argument("--rehearse", action="store_true", help="run the cases, report nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    options.work.mkdir(parents=True, exist_ok=True)
    part, alone = PARTS[options.part], not options.share
    if options.device == "cpu":  # nothing is compiled there, but sharing and rehearsing are tried out
        part = Part(part.seconds * DRY, min(2, part.workers), min(2, part.rehearsals))
    seconds, seed = options.seconds or part.seconds, options.seed or random.randrange(1, 1 << 31)
    start = time.monotonic()
    if alone and part.workers > 1:
        result = _merged(options, _spread(options, part.workers, seed, seconds))
    else:
        if alone and part.rehearsals:
            _spread(options, part.rehearsals, seed, seconds / 2, rehearse=True)
        left = seconds - (time.monotonic() - start)
        index, count = map(int, (options.share or "0/1").split("/"))
        bench = Bench(options.device, left, seed, options.work, (index, count), options.rehearse)
        result = _run(options.part, bench)
    result["wall_s"] = round(time.monotonic() - start, 1)
    path = _result_path(options.work, options.part, options.share)
    path.write_text(json.dumps({"seed": seed} | result, indent=1))
    print(json.dumps(_short(result))[:2000], flush=True)
    return 1 if "error" in result or _failed(result) else 0


def _leave(_number: int, _frame: Any) -> NoReturn:
    raise SystemExit("ended: out of time")


def _run(name: str, bench: Bench) -> dict[str, Any]:
    torch.manual_seed(bench.seed + bench.share[0])
    try:
        return import_module(f"tests.gpu.parts.{name}").run(bench)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _spread(
    options: argparse.Namespace, count: int, seed: int, seconds: float, *, rehearse: bool = False
) -> list[dict[str, Any]]:
    """Run shares of a part side by side; one that leaves no result has an error for it."""
    shares = [f"{index}/{count}" for index in range(count)]
    command = [sys.executable, "-m", "tests.gpu.main", options.part, "--work", str(options.work)]
    command += ["--device", options.device, "--seconds", str(seconds), "--seed", str(seed)]
    command += ["--rehearse"] if rehearse else []
    for share in shares:
        _result_path(options.work, options.part, share).unlink(missing_ok=True)
    processes = [subprocess.Popen([*command, "--share", share]) for share in shares]
    end = time.monotonic() + seconds + (0 if rehearse else 5)
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    paths = [_result_path(options.work, options.part, share) for share in shares]
    missing = {"error": "a share did not end"}
    return [json.loads(path.read_text()) if path.exists() else missing for path in paths]


def _merged(options: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for result in results for row in result.get("rows", [])]
    errors = sorted({result["error"] for result in results if "error" in result})
    return {"rows": rows} | ({"error": "; ".join(errors)} if errors else {})


def _result_path(work: Path, part: str, share: str) -> Path:
    return work / (f"share-{part}-{share.replace('/', 'of')}.json" if share else f"{part}.json")


def _failed(result: dict[str, Any]) -> list[str]:
    return [row["case"] for row in result.get("rows", []) if row.get("ok") is False]


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """What fits on a line: what failed, and all that is not a row."""
    rows = result.get("rows", [])
    return {key: value for key, value in result.items() if key != "rows"} | {
        "rows": len(rows),
        "failed": _failed(result),
    }


if __name__ == "__main__":
    raise SystemExit(main())
