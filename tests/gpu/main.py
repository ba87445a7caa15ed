"""Run one part, or put the results of all together: `python -m tests.gpu.main PART --out FOLDER`."""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
from importlib import import_module
from pathlib import Path

import torch

from tests.gpu.bench import Bench
from tests.gpu.report import write_report

PARTS = {"env": 30, "ceilings": 60, "correctness": 240, "engine": 120, "attention": 150, "gemm": 120, "model": 240}
"""Seconds each part may take, in the order they run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "report"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="0 = a fresh one, which is reported")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "report":
        print(write_report(options.out, list(PARTS)))
        return 0
    seed = options.seed or random.randrange(1, 1 << 31)
    torch.manual_seed(seed)
    bench = Bench(options.device, options.seconds or PARTS[options.part], seed)
    start = time.monotonic()
    result: dict[str, object] = {"seed": seed}
    try:
        result |= import_module(f"tests.gpu.parts.{options.part}").run(bench)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    result["wall_s"] = round(time.monotonic() - start, 1)
    (options.out / f"{options.part}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result)[:2000], flush=True)
    return 1 if "error" in result or result.get("failed") else 0


if __name__ == "__main__":
    raise SystemExit(main())
