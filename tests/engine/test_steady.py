"""A steady decode step on the native kernels calls nothing of torch's and takes no memory that grows with anything."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.build import build_engine
from inferd.engine.settings import WorkerSettings
from inferd.link import Submit, pack
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.library import why_missing
from tests.tiny import tiny_gguf

torch.set_num_threads(1)
ROWS = [
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True, seed=1),
    SamplingParams(temperature=1.1, top_k=20, top_p=0.9, min_p=0.01, max_tokens=60, ignore_eos=True, seed=2),
]
MOST_BYTES = 24_000
"""Of Python objects alive at once within a step: its lists, arrays of three rows, and the report."""


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
    config = Config(
        engine=Engine(max_sequences=4, linear="native", block_size=16, max_context=128),
        plugins=Plugins(attention="cpu"),
    )
    engine, card = build_engine(WorkerSettings(name="tiny", path=str(tiny_gguf(tmp_path)), config=config))
    assert card.eager_because == ""
    for i, sampling in enumerate(ROWS):
        engine.submit(Submit(key=f"r{i}", client="c", prompt=[5 + i, 9, 11], sampling=sampling, eos_ids=()))
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
