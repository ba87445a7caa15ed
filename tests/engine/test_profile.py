"""The pass that measures the largest steps, on a real runner with a device whose memory is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from inferd.config.schema import Config, Engine
from inferd.engine.assembly import Assembly, assemble, build_runner, measured_shape
from inferd.engine.batch import Batch
from inferd.engine.profile import Free, largest_steps, measure_steps
from inferd.engine.runner import Runner
from inferd.engine.settings import WorkerSettings
from inferd.engine.shape import EngineShape
from inferd.load.errors import LoadError
from tests.engine.rig import SHAPE, runner
from tests.model.harness import load
from tests.tiny import tiny_llama

TOTAL = 1 << 30


class Device:
    """Memory of a device that each step and each runner takes from."""

    def __init__(self, free: int, taken: list[int]) -> None:
        self.free, self.taken = free, taken

    def __call__(self) -> Free:
        free = self.free - (self.taken.pop(0) if self.taken else 0)
        return Free(TOTAL, free)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), layers=1, context=512)


def assembly(folder: Path, **engine: Any) -> Assembly:
    sizes = {"max_sequences": 4, "linear": "torch", "dtype": "fp32", "device": "cpu", "max_context": 0}
    return assemble(WorkerSettings(name="m", path=str(folder), config=Config(engine=Engine(**sizes | engine))))


def reserving(made: Assembly, reserve: int) -> Assembly:
    return replace(made, shape=replace(made.shape, device_reserve=reserve))


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, max_draft=0, token_budget=4),
        replace(SHAPE, max_sequences=1, chunk=8, token_budget=20),
        replace(SHAPE, max_sequences=3, chunk=16, token_budget=37, max_draft=3),
    ],
)
def test_the_largest_steps_of_a_shape_fill_it_and_run(folder: Path, shape: EngineShape) -> None:
    decoder = load(folder, context=64)
    steps = list(largest_steps(shape, 1))
    decode, prefill = steps[0], steps[-1]
    longest = min(shape.chunk, shape.max_context)
    assert prefill.num_tokens == min(shape.token_budget, shape.max_sequences * longest)
    assert (prefill.num_seqs, decode.num_seqs, decode.num_tokens) == (shape.max_sequences,) * 3
    assert (len(steps) == 3) == (shape.max_draft > 0)
    if shape.max_draft:
        verify = steps[1]
        assert verify.counts.verify == min(shape.max_sequences, shape.token_budget // (1 + shape.max_draft))
        assert len(verify.sample_rows) == verify.num_tokens == (1 + shape.max_draft) * verify.counts.verify
    for step in steps:
        assert set(step.context_lens.tolist()) == {shape.max_context}
        assert (step.positions[step.cu_seqlens[1:] - 1] == shape.max_context - 1).all()
    seen: list[Batch] = []

    def make(blocks: int) -> Runner:
        made: Any = runner(decoder, blocks=blocks)
        step = made.step
        made.step = lambda batch: (seen.append(batch), step(batch))[1]
        return made

    found = measure_steps(make, shape, 1, Device(1000, [0, 30, 50, 70] if shape.max_draft else [0, 50, 70]))
    assert found == (1000, 70, 20), "the last step takes 20 beside the graphs of the others"
    assert len(seen) == len(steps)


def test_the_pool_takes_what_the_weights_the_steps_and_the_reserve_leave(folder: Path) -> None:
    reserve = 80 << 20
    made = reserving(assembly(folder), reserve)
    block = sum(layout.bytes_per_block for layout in made.layouts)
    shapes: list[EngineShape] = []

    def make(shape: EngineShape) -> Runner:
        shapes.append(shape)
        return build_runner(replace(made, shape=shape), 0)

    enough, eager = measured_shape(made, 1000, make, Device(TOTAL, [0, 300, 500]))
    assert eager == 200
    assert (enough.num_blocks, enough.origin["num_blocks"]) == (4 * 32, "max_sequences x max_context")
    assert shapes[0].num_blocks == 512 // 16, "the steps ran on a pool of a few blocks"
    for blocks in (100, 33, 20):
        room = Device(reserve + 500 + blocks * block + 7, [0, 500])
        tight, _ = measured_shape(made, 1000, make, room)
        assert (tight.num_blocks, tight.origin["num_blocks"]) == (blocks, "measured free memory")
        assert tight.max_context == min(512, 16 * blocks)
    assert tight.origin["max_context"].startswith("memory")
    config = made.settings.config
    limited = structs.replace(config.engine, memory=1000 + 500 + 40 * block)
    settings = structs.replace(made.settings, config=structs.replace(config, engine=limited))
    asked, _ = measured_shape(replace(made, settings=settings), 1000, make, Device(TOTAL, [0, 500]))
    assert asked.num_blocks == 40, "engine.memory bounds what a GPU would have"


@pytest.mark.parametrize(
    ("engine", "blocks", "words"),
    [
        (
            {},
            10,
            ("one sequence of 512 tokens", "max_context to 160", "engine.kv_format", "quantized", "max_sequences"),
        ),
        ({"max_context": 512}, 20, ("one sequence of 512 tokens", "max_context to 320")),
        ({"kv_blocks": 100}, 60, ("100 blocks", "engine.kv_blocks to 60 or less")),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    folder: Path, engine: dict[str, Any], blocks: int, words: tuple[str, ...]
) -> None:
    made = reserving(assembly(folder, **engine), 80 << 20)
    block = sum(layout.bytes_per_block for layout in made.layouts)
    device = Device((80 << 20) + 500 + blocks * block, [0, 500])
    with pytest.raises(LoadError) as caught:
        measured_shape(made, 1000, lambda shape: build_runner(replace(made, shape=shape), 0), device)
    reserved = ("80 MiB more are kept free: engine.device_reserve",)
    assert all(word in str(caught.value) for word in words + reserved), str(caught.value)


def test_steps_without_room_are_refused_with_what_would_help(folder: Path) -> None:
    def make(_: int) -> Runner:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(LoadError, match=r"a step of 64 tokens and 4 sequences does not fit: 3 MiB .*token_budget"):
        measure_steps(make, SHAPE, 1, Device(3 << 20, []))
