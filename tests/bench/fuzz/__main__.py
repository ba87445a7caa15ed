"""Hostile inputs in great number, and a good request beside them.

    python -m tests.bench.fuzz [--inputs 100000] [--seed N] [--only TARGET] [--json FILE]

Frames, GGUF and safetensors headers, config files, chat templates and grammars are changed in all ways and
read as the daemon reads them, each target in a process of its own; a tenth of the inputs goes over the
sockets of a real daemon with a tiny model. Shown is that no input ends a process or raises what no caller
expects, that memory stays bounded, and that a good request to the same daemon gets the same tokens
throughout. Exit code 1 when it does not hold; inputs that show a fault are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.bench.fuzz import campaign
from tests.bench.fuzz.campaign import Found
from tests.bench.fuzz.live import Attacker, GoodClient
from tests.bench.fuzz.targets import TARGETS
from tests.e2e.harness import Served, all_free, anonymous_bytes, eventually, ready, serving
from tests.tiny import tiny_llama

SHARES = {"frames": 0.2, "gguf": 0.2, "safetensors": 0.2, "config": 0.1, "templates": 0.1, "schemas": 0.1}
"""Of all inputs; the rest goes over the sockets."""
MAX_GROWTH_MIB = 512
"""Of any process. Templates may build what the limits of the text process allow, for a moment."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*TARGETS, "live"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--crashes", type=Path, default=Path("bench-out/fuzz"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        model = tiny_llama(Path(folder) / "tiny", context=512)
        with serving(model, {"engine": {"threads": 1, "max_sequences": 4, "kv_blocks": 128}}) as daemon:
            result = run(daemon, str(model), options)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if result["holds"] else 1


def run(daemon: Served, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Attack the daemon and all targets, with a good client beside; return what happened."""
    start = time.monotonic()
    watcher = daemon.client("watcher")
    ready(watcher, model)
    good = GoodClient(daemon)
    before = _memory(daemon)
    good.start()
    targets = [_target(name, share, options) for name, share in SHARES.items() if options.only in (None, name)]
    live = _live(daemon, options) if options.only in (None, "live") else {}
    good.stop()
    grown = {name: round((size - before.get(name, 0)) / (1 << 20), 1) for name, size in _memory(daemon).items()}
    eventually(lambda: all_free(watcher, "tiny"), watcher.status)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "inputs": sum(found.inputs for found in targets) + live.get("messages", 0),
        "seed": options.seed,
        "seconds": round(time.monotonic() - start, 1),
        "targets": [found.summary() for found in targets],
        "live": live,
        "daemon_grown_mib": grown,
        "good_requests": {
            "asked": good.asked,
            "differed": good.differed,
            "failed": good.failed[:5],
            "slowest_s": round(good.slowest_s, 2),
        },
    }
    report["holds"] = _holds(report)
    return report


def _target(name: str, share: float, options: argparse.Namespace) -> Found:
    def tell(found: Found) -> None:
        print(f"{name}: {found.inputs}, {found.outcomes} outcomes, {len(found.faults)} faults", file=sys.stderr)

    count = options.inputs if options.only else round(share * options.inputs)
    return campaign.run(name, count, options.seed, options.crashes, tell)


def _live(daemon: Served, options: argparse.Namespace) -> dict[str, Any]:
    count = options.inputs if options.only else options.inputs - sum(round(s * options.inputs) for s in SHARES.values())
    attacker = Attacker(daemon.runtime, Random(options.seed))
    pid = daemon.pid
    attacker.attack(count)
    attacker.close()
    sent = attacker.sent
    alive = daemon.process.poll() is None and daemon.pid == pid
    restarts = sum(m.restarts for m in daemon.client("after").status().models) if alive else None
    return {
        "messages": sent.messages,
        "answers": dict(sorted(sent.answers.items())),
        "silences": sent.silences,
        "alive": alive,
        "engine_restarts": restarts,
        "handler_faults": daemon.logged().count("handler failed"),
    }


def _memory(daemon: Served) -> dict[str, int]:
    """Private bytes of the daemon's processes by their module."""
    return {"front": anonymous_bytes(daemon.pid)} | {n: anonymous_bytes(pid) for n, pid in daemon.children().items()}


def _holds(report: dict[str, Any]) -> bool:
    live, good = report["live"], report["good_requests"]
    calm = not live or (live["alive"] and not (live["silences"] or live["engine_restarts"] or live["handler_faults"]))
    bounded = (
        max([t["grown_mib"] for t in report["targets"]] + list(report["daemon_grown_mib"].values())) <= MAX_GROWTH_MIB
    )
    unharmed = not (good["differed"] or good["failed"]) and good["asked"] > 0
    return calm and bounded and unharmed and not any(t["faults"] for t in report["targets"])


if __name__ == "__main__":
    sys.exit(main())
