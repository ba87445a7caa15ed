"""Processes that share the cores: one at a time, nobody left out, and no turn lost with its holder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.rows import norm_plain

CHILD = """
import sys, time
from pathlib import Path
import torch
from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.program import Program
from inferd_kernels.cpu.rows import norm_plain

folder, operators = Path(sys.argv[1]), int(sys.argv[2])
library = load()
library.set_threads(2)
library.share_cores(folder)
x, weight = torch.randn(1024, 4096), torch.ones(4096)
program = Program()
with program.record():
    for _ in range(operators):
        norm_plain(x, weight, 1e-5)
print("ready", flush=True)
for line in sys.stdin:
    start = time.monotonic()
    program.run(tokens=1024, sequences=0, sampled=0)
    print(start, time.monotonic(), library.waited_s, flush=True)
"""
"""Records a program of so many operators (about a millisecond each) and runs it once for each line."""

TRIES = 10
"""Where the machine pauses in the midst of it, one of two may be done before the other begins: they begin anew."""

Start = Callable[[int], "Process"]


class Process:
    def __init__(self, folder: Path, operators: int) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(operators)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == ["ready"]

    def read(self) -> list[str]:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().split()

    def go(self, times: int = 1) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("go\n" * times)
        self.popen.stdin.flush()

    def times(self) -> tuple[float, float, float]:
        start, end, waited = map(float, self.read())
        return start, end, waited


@pytest.fixture
def start(tmp_path: Path, library: Library) -> Iterator[Start]:
    running: list[Process] = []

    def process(operators: int) -> Process:
        running.append(Process(tmp_path, operators))
        return running[-1]

    yield process
    for one in running:
        one.popen.kill()
        one.popen.communicate()


def test_two_processes_never_compute_at_once(start: Start) -> None:
    a, b = start(20), start(20)
    before = 0.0
    for _ in range(TRIES):
        a.go(12)
        b.go(12)
        runs = [[one.times() for _ in range(12)] for one in (a, b)]
        wall = max(own[-1][1] for own in runs) - min(own[0][0] for own in runs)
        asked = sum(end - begin for own in runs for begin, end, _ in own)
        waited, before = sum(own[-1][2] for own in runs) - before, sum(own[-1][2] for own in runs)
        if asked > 1.3 * wall and asked - waited < 1.02 * wall:  # they wanted the cores at once, and nothing else did
            break
    assert asked > 1.3 * wall
    assert asked - waited < 1.02 * wall


def test_a_short_program_need_not_wait_for_the_end_of_a_long_one(start: Start) -> None:
    long, short = start(300), start(3)
    for _ in range(TRIES):
        long.go()
        time.sleep(0.1)
        short.go(5)
        end, (begin, long_end, _) = [short.times()[1] for _ in range(5)][-1], long.times()
        if begin < end < long_end:
            break
    assert begin < end < long_end


def test_the_turn_of_a_killed_process_is_free_again(start: Start) -> None:
    long, other = start(2000), start(3)
    long.go()
    time.sleep(0.1)
    long.popen.kill()
    long.popen.wait()
    other.go()
    assert other.times()[1] > 0


def test_a_forked_child_takes_no_turns(library: Library, tmp_path: Path) -> None:
    library.share_cores(tmp_path)
    x, weight = torch.randn(4, 64), torch.ones(64)
    try:
        want = norm_plain(x, weight, 1e-5)
        before = library.waited_s
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(norm_plain(x, weight, 1e-5), want) and library.waited_s == before else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(norm_plain(x, weight, 1e-5), want)
        assert library.waited_s > before
    finally:
        library.share_cores(None)


def test_a_folder_that_is_not_there_is_an_error(library: Library, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="take turns"):
        library.share_cores(tmp_path / "none")
