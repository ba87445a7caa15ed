"""inferd beside llama.cpp and OpenVINO GenAI: alternately, on the same file and prompts.

    python -m tests.bench.peers                                 everything (about 20 minutes on 2 cores)
    python -m tests.bench.peers --parts decode0,batch8 --peers 'llama.cpp Q4_1,OpenVINO Q8_0' --repeats 5
    python -m tests.bench.peers --show run1.json run2.json      tables of what was measured before

Everybody runs each part once, uncounted. Whoever was nowhere near the best of those that a goal compares us with (see
--near) is left out of the counted repeats, so that every format of every peer can be tried; with --peers nobody is.

The peers are installed at the first call, each into a folder of its own under inferd's cache. `llama-bench` and
`llama-batched-bench` draw their prompts themselves, of the same lengths; everything else gets the same token ids.
Files are in the page cache before anything is timed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.load.store import Store
from inferd_kernels.cpu.threads import physical_cores
from tests.bench.peers import install
from tests.bench.peers.contestant import FRESH, METRICS, PARTS, Contestant
from tests.bench.peers.files import quantised
from tests.bench.peers.goals import contenders, goal_rows, goals
from tests.bench.peers.llamacpp import LlamaCpp
from tests.bench.peers.openvino import OpenVino
from tests.bench.peers.ours import Inferd
from tests.bench.peers.results import Run, Sample, load, save, table
from tests.bench.peers.sweep import Sweep

PEERS = (
    "inferd Q4_1",
    "sweep Q4_1",
    "llama.cpp Q4_1",
    "inferd Q4_0",
    "llama.cpp Q4_0",
    "llama.cpp Q8_0",
    "llama.cpp BF16",
    "OpenVINO Q4_1",
    "OpenVINO Q4_0",
    "OpenVINO Q8_0",
    "OpenVINO F16",
)
NEAR = 0.85


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    runs = load(options.show or ([options.json] if options.json and options.json.exists() else []))
    if not options.show:
        _warn_of_load()
        run = Run(_machine(options.threads), datetime.datetime.now().isoformat(timespec="seconds"), options.set)
        runs.append(run)
        with ExitStack() as stack:
            contestants = [stack.enter_context(closing(c)) for c in _contestants(options)]
            for sample in measure(contestants, options.parts, options.repeats, options.near):
                run.samples.append(sample)
                if options.json:
                    save(options.json, runs)
    print(f"\n{runs[-1].machine}\n")
    print("\n".join(table(runs)))
    print()
    print("\n".join(goal_rows(runs)))
    return 0


def measure(contestants: Sequence[Contestant], parts: Sequence[str], repeats: int, near: float) -> Iterator[Sample]:
    """Measure every part of everybody in turn, in changing order, `repeats` times after one uncounted turn (0).

    After that turn only contenders go on. Where everybody does (`near` 0), parts that start processes of their own
    anyway have no uncounted turn.
    """
    for part in (p for p in PARTS if p in parts):
        field = [contestant for contestant in contestants if part in contestant.parts]
        for repeat in range(1 if not near and part in FRESH else 0, repeats + 1):
            turn: list[Sample] = []
            for contestant in field[:: 1 if repeat % 2 else -1]:
                values = contestant.measure(part, seed=100 * repeat + 1)
                shown = ", ".join(f"{name} {value:.4g} {METRICS[name].unit}" for name, value in values.items())
                print(f"{part} {repeat}/{repeats} {contestant.name}: {shown}", file=sys.stderr, flush=True)
                turn += (Sample(contestant.name, name, repeat, value) for name, value in values.items())
            yield from turn
            if near and not repeat:
                wanted = contenders(turn, goals(), near)
                field = [contestant for contestant in field if contestant.name in wanted]


def _contestants(options: argparse.Namespace) -> list[Contestant]:
    config = load_config().config
    paths = RuntimePaths.of(config)
    cache = options.cache or paths.cache / "peers"
    source = Store(paths.models).resolve(options.model)
    shipped = source.stem.rpartition(".")[2]
    made: list[Contestant] = []
    for name in options.peers:
        product, _, file = name.partition(" ")
        tools = install.llama_tools(cache, options.threads)
        path = source if file == shipped else quantised(source, file, tools, cache / "models")
        path.read_bytes()
        if product == "inferd":
            made.append(Inferd(path, file, [*options.set, f"engine.threads={options.threads}"]))
        elif product == "sweep":
            made.append(Sweep(path, file, options.threads))
        elif product == "llama.cpp":
            made.append(LlamaCpp(tools, path, file, options.threads))
        elif product == "OpenVINO":
            made.append(OpenVino(install.openvino_python(cache), path, file, options.threads))
        else:
            raise SystemExit(f"unknown peer {name!r}; write e.g. {', '.join(PEERS)}")
    return made


def _warn_of_load() -> None:
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"load average {load:.1f}: llama.cpp's threads spin at barriers, so other work slows it most",
            file=sys.stderr,
        )


def _machine(threads: int) -> str:
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "")
    peers = f"llama.cpp {install.LLAMA_VERSION}, {install.OPENVINO_PACKAGE}"
    return f"{platform.machine()} {model}, {threads} threads; {peers}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF model of the store, or a path")
    parser.add_argument("--parts", type=names, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--peers", type=names, help=f"some of {', '.join(PEERS)}, or other formats")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--near",
        type=float,
        help=f"share of the best's result that a peer needs to go on after one turn (default {NEAR}; 0 = all go on)",
    )
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of inferd")
    parser.add_argument("--cache", type=Path, help="where the peers are kept")
    parser.add_argument("--json", type=Path, help="add the samples to this file")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing, show these files")
    options = parser.parse_args(arguments)
    if options.near is None:
        options.near = 0.0 if options.peers else NEAR
    options.peers = options.peers or list(PEERS)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
