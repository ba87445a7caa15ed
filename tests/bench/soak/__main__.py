"""A mixed load with cancels, vanishing clients, bad requests and killed processes, for as long as wanted.

    python -m tests.bench.soak [--minutes 10] [--model NAME_OR_PATH] [--json FILE]

The model is the default one where it was pulled, else a tiny one. Kills happen in the first half. At the end
the load stops, and it must show: every request was answered, some were preempted, no KV block is held, nothing is
left in the books, memory of every process flat over the calm half, files and threads too. Exit code 1 when it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.soak.actors import Actor, Canceller, Deserter, Killer, Pack, User, Vandal, Watcher, Witness
from tests.bench.soak.books import Books
from tests.bench.soak.gauges import Gauges
from tests.e2e.harness import Served, all_free, eventually, ready, serving, the_model
from tests.tiny import tiny_llama

CAST = (User, User, User, Witness, Pack, Canceller, Deserter, Vandal, Killer, Watcher)
ENGINE = {"max_sequences": 8, "kv_blocks": 40, "max_context": 640, "chunk": 128}
"""A pool that a full batch exceeds (`Pack` alone wants half as much again), so that requests are preempted."""
SETTLE_S = 5.0
FLAT_PERCENT, FLAT_MIB = 5.0, 8.0
"""Growth over the calm half that counts as flat: within either."""
STATUS_MS = 100.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", help="a name in the store or a path; `tiny` for one made on the spot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        model = _model(options.model, Path(folder))
        with serving(model, {"engine": ENGINE, "daemon": {"max_queue": 64}}) as daemon:
            result = soak(daemon, model, 60 * options.minutes, options.seed)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if result["holds"] else 1


def soak(daemon: Served, model: str, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Put everybody on the daemon, then look at what is left."""
    watcher = daemon.client("judge")
    ready(watcher, model)
    books, over, start = Books(), threading.Event(), time.monotonic()
    gauges = Gauges(daemon, over)
    cast: list[Actor] = [kind(daemon, model, books, over, seed + number) for number, kind in enumerate(CAST)]
    killer = next(actor for actor in cast if isinstance(actor, Killer))
    killer.until, killer.every_s = start + seconds / 2, min(Killer.every_s, seconds / 6)
    for thread in (gauges, *cast):
        thread.start()
    calm = start + seconds / 2 + min(20.0, seconds / 10)
    _wait(seconds, books, start)
    over.set()
    for thread in cast:
        thread.join(150)
    stuck = [thread.label for thread in cast if thread.is_alive()]
    eventually(lambda: all_free(watcher, model), watcher.status)
    time.sleep(min(SETTLE_S, seconds / 4))
    gauges.sample()
    return _judge(daemon, model, books, gauges, calm=calm, kills=killer.kills, stuck=stuck, seconds=seconds)


def _wait(seconds: float, books: Books, start: float) -> None:
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(15.0, left))
        print(f"{time.monotonic() - start:4.0f} s: {sum(books.begun.values())} requests", file=sys.stderr)


def _judge(
    daemon: Served,
    model: str,
    books: Books,
    gauges: Gauges,
    *,
    calm: float,
    kills: int,
    stuck: list[str],
    seconds: float,
) -> dict[str, Any]:
    with daemon.client("judge2") as client:
        status = client.status()
        found = the_model(client, model)
    names = sorted({sample[1] for sample in gauges.samples})
    trends = {name: trend for name in names if (trend := gauges.trend(name, calm)) is not None}
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "model": f"{found.name} ({found.dtype}, {', '.join(sorted(found.plugins.values()))})",
        "minutes": round(seconds / 60, 2),
        "kills": kills,
        "worker_restarts": found.restarts,
        "preemptions": int(status.counters.get("inferd_num_preemptions_total", 0)),
        **books.summary(),
        "leaked_blocks": (found.kv_blocks_total or 0) - (found.kv_blocks_free or 0),
        "left_in_books": len(status.requests),
        "handler_faults": daemon.logged().count("handler failed"),
        "stuck": stuck,
        "memory": trends,
    }
    report["failures"] = list(_failures(report))
    report["holds"] = not report["failures"]
    return report


def _failures(report: dict[str, Any]) -> list[str]:
    found = [
        f"{name} is {report[name]}"
        for name in ("unanswered", "leaked_blocks", "left_in_books", "handler_faults")
        if report[name]
    ]
    found += [] if report["preemptions"] else ["no request was preempted"]
    found += report["wrong"] + [f"{label} did not end" for label in report["stuck"]]
    for name, trend in report["memory"].items():
        grown = trend["last_mib"] - trend["first_mib"]
        if grown > FLAT_MIB and trend["grown_percent"] > FLAT_PERCENT:
            found.append(f"{name} grew from {trend['first_mib']} to {trend['last_mib']} MiB")
        for what in ("files", "threads"):
            if trend[what][1] > trend[what][0] + 4:
                found.append(f"{name}: {what} went from {trend[what][0]} to {trend[what][1]}")
    return found


def _model(wanted: str | None, folder: Path) -> str:
    if wanted and wanted != "tiny":
        return wanted
    from inferd.config.layers import load_config
    from inferd.config.paths import RuntimePaths
    from inferd.load.errors import LoadError
    from inferd.load.store import Store

    try:
        if wanted != "tiny":
            return str(Store(RuntimePaths.of(load_config().config).models).resolve("smollm2-135m"))
    except LoadError:
        pass
    return str(tiny_llama(folder / "tiny", context=4096))


if __name__ == "__main__":
    sys.exit(main())
