"""A steady step on the native kernels calls nothing of torch's, allocates nothing in C and keeps its memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inferd.link import Submit, pack
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.library import why_missing
from tests.engine.steady import PROMPT, ROWS, tiny_engine

torch.set_num_threads(1)
MOST_BYTES = 24_000
"""Of Python objects alive at once within a step: its lists, arrays of four rows, and the report."""


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    if why_missing():
        pytest.skip(why_missing())
    engine = tiny_engine(tmp_path)
    for i, sampling in enumerate(ROWS):
        engine.submit(Submit(key=f"r{i}", client="c", prompt=[5 + i, *PROMPT], sampling=sampling, eos_ids=()))
    for _ in range(6):
        engine.step()
    yield engine
    engine.close()


def test_no_call_of_torch(engine: Any) -> None:
    with Counting() as counting:
        for _ in range(20):
            engine.step()
    assert counting.calls == []


def test_logits_that_are_asked_for_are_seen_by_the_counter(engine: Any) -> None:
    asks = SamplingParams(temperature=0, logprobs=2, max_tokens=9)
    engine.submit(Submit(key="asks", client="c", prompt=[4, 5], sampling=asks, eos_ids=()))
    with Counting() as counting:
        engine.step()
        engine.step()
    assert counting.calls


def test_memory_stays_where_it_is(engine: Any) -> None:
    tracemalloc.start()
    try:
        for _ in range(10):
            pack(engine.step())
        before = tracemalloc.get_traced_memory()[0]
        highest = 0
        for _ in range(20):
            start = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            pack(engine.step())
            highest = max(highest, tracemalloc.get_traced_memory()[1] - start)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert highest < MOST_BYTES
    assert grown < 20 * 200 * len(ROWS)  # the tokens themselves


def test_no_allocation_in_the_native_part_of_a_step(tmp_path: Path) -> None:
    """Prefill and decode, for whatever rows ask, once everything has been used once."""
    if why_missing() or not shutil.which("cc") or not sys.platform.startswith("linux"):
        pytest.skip("needs the kernels and a C compiler")
    shim = tmp_path / "allocations.so"
    source = Path(__file__).with_name("allocations.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.allocations_child", shim, tmp_path],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    control, *counts = map(int, child.stdout.split())
    assert control == 3
    assert len(counts) >= 60
    assert set(counts) == {0}
