"""Recording: a captured step equals the eager one; buffers are reused only when nobody refers to them."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from inferd.engine.batch import Row
from inferd.engine.runner import Runner
from inferd.model import kv_groups
from inferd.model.decoder import Decoder
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.arena import Arena
from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.operators import argmax, compact, gather
from inferd_kernels.cpu.program import Program, empty
from inferd_kernels.cpu.rows import norm_plain, silu_plain
from inferd_kernels.linear import default_kernels
from inferd_plugins.attention.cpu import CpuAttention
from tests.engine.rig import SHAPE, Rig
from tests.model.harness import load as load_model
from tests.tiny import tiny_gguf, tiny_llama

GREEDY = SamplingParams(temperature=0, logprobs=3)
PROMPTS = [[(13 * i + 5 * s) % 50 + 4 for i in range(9 + 4 * s)] for s in range(3)]


def native_runner(decoder: Decoder, *, capture: bool) -> Runner:
    backend = CpuAttention()
    layouts = [backend.kv_layout(group, "fp32", SHAPE.block_size) for group in kv_groups(decoder.spec)]
    return Runner(decoder, backend, layouts, SHAPE, device="cpu", dtype=torch.float32, capture=capture)


def transcript(runner: Runner) -> list[object]:
    """Prefill, decode and verify three sequences in ragged steps; everything that came out."""
    rig = Rig(runner)
    a, b, c = (rig.add(slot, prompt, GREEDY) for slot, prompt in enumerate(PROMPTS))
    out: list[object] = [
        rig.step([Row(a, 0, len(PROMPTS[0])), Row(b, 0, 7, samples=False)]),
        rig.step([Row(a, a.num_computed, 1), Row(b, 7, len(PROMPTS[1]) - 7), Row(c, 0, len(PROMPTS[2]))]),
    ]
    for _ in range(4):
        out.append(rig.step([Row(s, s.num_computed, 1) for s in (a, b)]))
        out.append(rig.step([Row(a, a.num_computed, 1), Row(c, c.num_computed, 3, (7, 8))]))
    return [*out, a.tokens, b.tokens, c.tokens]


@pytest.mark.parametrize("model", ["float", "quantized"])
def test_a_captured_step_equals_the_eager_one(tmp_path: Path, model: str, tier: str) -> None:
    path = tiny_llama(tmp_path) if model == "float" else tiny_gguf(tmp_path)
    decoder = load_model(path, context=64, kernels=default_kernels("native"))
    assert decoder.eager_because == ""
    assert decoder.weights_note == ""
    eager = transcript(native_runner(decoder, capture=False))
    captured = transcript(native_runner(decoder, capture=True))
    for want, got in zip(eager, captured, strict=True):
        strip = [getattr(side, "rows", side) for side in (want, got)]
        assert strip[0] == strip[1]


def test_rows_are_counted_at_replay(library: Library) -> None:
    x, weight = torch.randn(6, 40), torch.rand(40)
    program = Program()
    with program.record():
        y = norm_plain(x, weight, 1e-5)
        with program.rows("sampled"):
            peaks = argmax(y)
    y.fill_(-1)
    program.run(tokens=4, sequences=0, sampled=2)
    want = norm_plain(x, weight, 1e-5)
    assert torch.equal(y[:4], want[:4])
    assert bool((y[4:] == -1).all())
    assert peaks.ids[:2].tolist() == want[:2].argmax(-1).tolist()
    x.neg_()
    program.run(tokens=6, sequences=0, sampled=0)
    assert torch.equal(y, norm_plain(x, weight, 1e-5))


def test_argmax_takes_the_lowest_of_equals_and_tells_bad_numbers(tier: str) -> None:
    x = torch.zeros(5, 37)
    x[0, 20] = x[0, 33] = 4.0
    x[1, 36] = float("nan")
    x[2, 3] = float("inf")
    x[3].fill_(float("-inf"))
    x[4, 5:] = float("-inf")
    peaks = argmax(x)
    assert peaks.ids.tolist()[:1] == [20]
    assert torch.isfinite(peaks.values).tolist() == [True, False, False, False, True]
    assert peaks.ids[4] == 0


def test_an_arena_gives_memory_again_once_it_is_free() -> None:
    arena = Arena()
    first = arena.empty((4, 8), torch.float32)
    where, view = first.data_ptr(), first[1:]
    del first
    second = arena.empty((4, 8), torch.float32)
    assert second.data_ptr() != where  # a view still refers to it
    del view
    gc.collect()
    third = arena.empty((2, 8), torch.float32)
    assert third.data_ptr() == where
    assert third.data_ptr() % 64 == 0
    assert arena.num_bytes == 2 * 128
    assert empty((3,), torch.int64).dtype == torch.int64


def test_idle_threads_sleep(library: Library) -> None:
    library.set_threads(2)
    norm_plain(torch.randn(8, 64), torch.ones(64), 1e-5)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.02


def test_programs_of_several_threads_take_turns(library: Library) -> None:
    library.set_threads(2)
    x, weight = torch.randn(64, 512), torch.ones(512)
    want = norm_plain(x, weight, 1e-5)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(turn for turn in range(200) if not torch.equal(norm_plain(x, weight, 1e-5), want))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_computes_too(library: Library) -> None:
    library.set_threads(2)
    x, weight = torch.randn(16, 64), torch.ones(64)
    want = norm_plain(x, weight, 1e-5)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(norm_plain(x, weight, 1e-5), want) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(norm_plain(x, weight, 1e-5), want)


def test_threads_may_change_between_programs(library: Library) -> None:
    x, weight = torch.randn(16, 64), torch.ones(64)
    want = norm_plain(x, weight, 1e-5)
    for count in (1, 3, 2, 1):
        library.set_threads(count)
        assert library.threads == count
        assert torch.equal(norm_plain(x, weight, 1e-5), want)
    with pytest.raises(ValueError, match="0 threads"):
        library.set_threads(0)


def test_a_computation_by_torch_cannot_slip_into_a_recording() -> None:
    program, x = Program(), torch.ones(2, 32)
    with program.record():
        silu_plain(x[:1].view(1, 32))  # a view of what is given is fine
        with pytest.raises(RuntimeError, match="mul"):
            x.mul(2)
    assert len(program) == 1


def test_rows_are_picked_and_moved_to_the_front() -> None:
    x = torch.randn(9, 40)
    index = torch.tensor([0, 3, 4, 8], dtype=torch.int32)
    picked, rest = x[index.long()], x[4:].clone()
    assert torch.equal(gather(x, index), picked)
    moved = compact(x, index)
    assert moved.data_ptr() == x.data_ptr()
    assert torch.equal(x[:4], picked)
    assert torch.equal(x[4:], rest)
