"""How well the native kernels share the machine: `python -m tests.bench.neighbour [--seconds S] [--json FILE]`.

Each line is a ratio of decode rates of one sequence, measured in processes of their own:

- foreign   what one busy thread of another program costs, over its fair share (1 = no more than that)
- together  two loaded models at once, over the rate of one alone (1 = each has half)
- untaken   the same without turns (each runs whenever it wants), for comparison
- quota     a quota of one CPU, over one thread without a quota
- idle      percent of one CPU that a loaded, idle model takes
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.load.store import Store
from inferd_kernels.cpu.threads import physical_cores

QUOTA_GROUP = Path("/sys/fs/cgroup/cpu/inferd-bench")
ROUNDS = 3


def child(folder: str, threads: int, seconds: float) -> None:
    """Load, say so, and after each line read decode for some seconds and print the rate; the last line: idle."""
    from inferd.link import Submit
    from inferd_client.protocol import SamplingParams
    from inferd_kernels.cpu.library import load as load_library
    from tests.bench.harness import Side, load

    path = str(Store(RuntimePaths.of(load_config().config).models).resolve("smollm2-135m"))
    loaded = load(
        path, Side("native", {"linear": "native", "max_context": 2048, "max_sequences": 1, "threads": threads})
    )
    engine = loaded.engine
    load_library().share_cores(Path(folder) if folder else None)
    sampling = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)
    print(load_library().threads, flush=True)
    for turn, line in enumerate(sys.stdin):
        if line.strip() == "idle":
            before = time.process_time()
            time.sleep(seconds)
            print(100 * (time.process_time() - before) / seconds, flush=True)
            continue
        prompt = [(j * 7 + turn) % 1000 for j in range(16)]
        engine.submit(Submit(key=f"r{turn}", client="c", prompt=prompt, sampling=sampling, eos_ids=()))
        engine.step()
        tokens, start = 0, time.monotonic()
        while engine.has_work and time.monotonic() - start < seconds:
            tokens += sum(len(output.ids) for output in engine.step().outputs)
        print(tokens / (time.monotonic() - start), flush=True)
        engine.abort(f"r{turn}")


class Model:
    """A process with a loaded model."""

    def __init__(self, *, folder: str = "", threads: int = 0, seconds: float = 3, prefix: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "tests.bench.neighbour", "--child", folder, str(threads), str(seconds)]
        self._process = subprocess.Popen([*prefix, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.threads = int(self._read())

    def ask(self, what: str = "go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a model's process ended")
        return line

    def answer(self) -> float:
        return float(self._read())

    def rate(self) -> float:
        self.ask()
        return self.answer()

    def close(self) -> None:
        self._process.communicate()


def measure(seconds: float) -> dict[str, float | None]:
    """Return the ratios by name; None where this machine cannot say."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Model(folder=folder, seconds=seconds), Model(folder=folder, seconds=seconds)
        alone, foreign, together = [], [], []
        share = first.threads / (first.threads + 1)
        first.rate()
        for _ in range(ROUNDS):
            alone.append(first.rate())
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            foreign.append(alone[-1] * share / first.rate())
            busy.kill()
            busy.wait()
            first.ask()
            second.ask()
            together.append((first.answer() + second.answer()) / alone[-1])
        first.ask("idle")
        idle = first.answer()
        first.close()
        second.close()
    return {
        "foreign": statistics.median(foreign),
        "together": statistics.median(together),
        "untaken": _together_without_turns(seconds, statistics.median(alone)),
        "quota": _quota(seconds),
        "idle": idle,
        "alone tokens/s": statistics.median(alone),
    }


def _together_without_turns(seconds: float, alone: float) -> float:
    first, second = Model(seconds=seconds), Model(seconds=seconds)
    found = []
    for _ in range(ROUNDS):
        first.ask()
        second.ask()
        found.append((first.answer() + second.answer()) / alone)
    first.close()
    second.close()
    return statistics.median(found)


def _quota(seconds: float) -> float | None:
    """Needs a writable cgroup (version 1) and at least two cores."""
    if physical_cores() < 2:
        return None
    try:
        QUOTA_GROUP.mkdir(exist_ok=True)
        (QUOTA_GROUP / "cpu.cfs_quota_us").write_text("100000")
    except OSError:
        return None
    enter = ["sh", "-c", f'echo $$ > {QUOTA_GROUP}/cgroup.procs; exec "$@"', "sh"]
    limited, single = Model(seconds=seconds, prefix=enter), Model(seconds=seconds, threads=1)
    ratios = [limited.rate() / single.rate() for _ in range(ROUNDS)]
    limited.close()
    single.close()
    QUOTA_GROUP.rmdir()
    return statistics.median(ratios)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "THREADS", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        folder, threads, seconds = options.child
        child(folder, int(threads), float(seconds))
        return 0
    results = measure(options.seconds)
    for name, value in results.items():
        print(f"{name:16} {'n/a' if value is None else f'{value:.3f}'}")
    text = json.dumps(results)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
