"""Feed one target: `python -m tests.bench.fuzz.worker TARGET SEED FIRST COUNT FOLDER`.

Prints one JSON line every so often and at the end. The input at hand is in FOLDER/current, so that whoever
started this finds what killed it.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import struct
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from random import Random

from tests.bench.fuzz.mutate import MAX_BYTES
from tests.bench.fuzz.targets import TARGETS, Target, outcome_of

REPORT_EVERY = 500
MAX_CORPUS = 400
FRESH = 0.6
"""Share of inputs made from valid ones; the rest comes from inputs that were refused in a new way."""
SPARE = 1024
HEAD = struct.Struct("<QI")


class Current:
    """Number and bytes of the input at hand, in a file that survives this process."""

    def __init__(self, path: Path) -> None:
        size = HEAD.size + MAX_BYTES + SPARE
        with path.open("w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)

    def set(self, number: int, data: bytes) -> None:
        data = data[: MAX_BYTES + SPARE]
        self._map[: HEAD.size + len(data)] = HEAD.pack(number, len(data)) + data

    @staticmethod
    def read(path: Path) -> tuple[int, bytes]:
        raw = path.read_bytes()
        number, size = HEAD.unpack_from(raw)
        return number, raw[HEAD.size : HEAD.size + size]


def run(target: Target, seed: int, first: int, count: int, current: Current) -> None:
    """Try inputs number `first` to `first + count`. Kinds of outcome not seen before enter the corpus."""
    seeds = target.seeds()
    for data in seeds:
        target.read(data)
    corpus = list(seeds)
    seen, accepted, slowest, base = set(), 0, 0.0, resident()
    for number in range(first, first + count):
        rng = Random(f"{target.name} {seed} {number}")
        data = target.change(rng, seeds if rng.random() < FRESH else corpus)
        current.set(number, data)
        start = time.monotonic()
        try:
            error = target.read(data)
        except BaseException as fault:  # whatever comes out is what we look for
            say("fault", input=data.hex(), error="".join(traceback.format_exception(fault))[-3000:])
            error = "fault"
        took = time.monotonic() - start
        slowest = max(slowest, took)
        if took > target.seconds:
            say("slow", input=data.hex(), seconds=took)
        accepted += not error
        kind = outcome_of(error)
        if kind not in seen and len(corpus) < MAX_CORPUS and len(data) < 8192:
            seen.add(kind)
            corpus.append(data)
        if (number + 1 - first) % REPORT_EVERY == 0 or number == first + count - 1:
            say(
                "progress",
                done=number + 1 - first,
                accepted=accepted,
                outcomes=len(seen),
                slowest_s=round(slowest, 3),
                grown_bytes=resident() - base,
            )


def resident() -> int:
    """Private memory of this process, swapped or not."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def make(name: str, folder: Path) -> Target:
    """Make a target by its name, or by `module:Class`."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(import_module(module), attribute)(folder)
    return TARGETS[name](folder)


def main(name: str, seed: str, first: str, count: str, folder: str) -> None:
    faulthandler.enable()
    run(make(name, Path(folder)), int(seed), int(first), int(count), Current(Path(folder) / "current"))


if __name__ == "__main__":
    main(*sys.argv[1:])
