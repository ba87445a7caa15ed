"""Steps as graphs: a fake graph runs its capture again at each replay, on the buffers that were captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.engine.batch import Row, StepOutput
from inferd.engine.cuda_buckets import Bucket
from inferd.engine.cuda_graphs import Graph, GraphForward, Outputs
from inferd.engine.cuda_staging import PinnedInputs
from inferd.engine.cuda_tokens import DeviceTokens
from inferd.engine.offline import run
from inferd.engine.runner import Runner
from inferd.engine.workspace import BucketWorkspace
from inferd.model import kv_groups
from inferd.model.decoder import Decoder
from inferd_client.protocol import SamplingParams
from inferd_kernels.triton.sampler import sample
from inferd_plugins.attention.triton import TritonAttention
from tests.engine.rig import SHAPE, Rig
from tests.equivalence.rig import build, submit
from tests.model.harness import load
from tests.tiny import tiny_llama

PROMPT = [(13 * i + 5) % 280 + 4 for i in range(11)]


class FakeGraphs:
    """What a graph does: fixed outputs, written again by a replay from whatever the inputs then hold."""

    def __init__(self, *, grows_by: int = 0, full_at: int = 99) -> None:
        self.captures = self.replays = 0
        self._grows_by, self._full_at = grows_by, full_at

    def capture(self, run: Callable[[], Outputs]) -> Graph:
        if self.captures == self._full_at:
            raise torch.OutOfMemoryError("no room")
        self.captures += 1
        outputs = run()

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode():
                for fixed, fresh in zip(outputs, run(), strict=True):
                    fixed.copy_(fresh)

        return Graph(outputs, replay)

    def num_bytes(self) -> int:
        return self.captures * self._grows_by


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load(tiny_llama(tmp_path_factory.mktemp("model"), layers=1), context=64)


def rig(decoder: Decoder, maker: FakeGraphs | None, **options: Any) -> Rig:
    shape = replace(SHAPE, depth=2)
    backend = TritonAttention()
    layouts = [backend.kv_layout(group, "fp32", SHAPE.block_size) for group in kv_groups(decoder.spec)]
    runner = Runner(decoder, backend, layouts, shape, device="cpu", dtype=torch.float32)
    if maker is not None:
        for planes in runner.kv.values():
            for plane in planes.values():
                plane.fill_(float("nan"))
        put_on_graphs(runner, maker, **options)
    return Rig(runner)


def put_on_graphs(runner: Runner, maker: FakeGraphs | None, **options: Any) -> None:
    """Let a runner of this CPU work as on a GPU, with graphs of `maker`."""
    shape = runner.shape
    inputs = PinnedInputs(shape, 1, "cpu")
    runner._queued, runner._last = True, None
    runner._captured = GraphForward(
        runner.decoder,
        runner._backend,
        runner.kv,
        inputs,
        DeviceTokens(shape.max_sequences, inputs.max_rows, shape.depth, "cpu"),
        BucketWorkspace("cpu"),
        runner._sampler.params.choice,
        shape,
        maker=maker,
        choose_tokens=lambda logits, params: sample(logits, params, block=512),
        **options,
    )


def story(made: Rig) -> list[list[int]]:
    """Mixed prefill, decodes of one to three sequences, verification of uneven drafts, a sequence that leaves."""
    warm = SamplingParams(temperature=0.9, top_k=30, top_p=0.9, min_p=0.001)
    a, b, c = (
        made.add(2, PROMPT, SamplingParams(temperature=0)),
        made.add(0, PROMPT[:7], warm, seed=5),
        made.add(1, PROMPT[3:], SamplingParams(temperature=0.8, presence_penalty=0.5), seed=6),
    )
    made.step([Row(a, 0, 11), Row(b, 0, 7)])
    made.step([Row(a, 11, 1), Row(b, 7, 1), Row(c, 0, 8)])
    for _ in range(2):
        made.step([Row(s, s.num_computed, 1) for s in (a, b, c)])
    made.step([Row(a, a.num_computed, 1), Row(b, b.num_computed, 4, (1, 2, 3)), Row(c, c.num_computed, 2, (9,))])
    made.remove(c)
    for _ in range(2):
        made.step([Row(s, s.num_computed, 1) for s in (a, b)])
    made.step([Row(a, a.num_computed, 1)])
    return [s.tokens for s in (a, b, c)]


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> list[list[int]]:
    """The story without graphs."""
    return story(rig(decoder, None))


def test_replayed_steps_give_the_tokens_of_eager_ones(decoder: Decoder, plain: list[list[int]]) -> None:
    """Padding rows write nothing and are read by nobody: the pool holds NaN wherever no token was stored."""
    maker = FakeGraphs()
    made = rig(decoder, maker)
    assert story(made) == plain
    forward = made.runner._captured
    assert isinstance(forward, GraphForward)
    assert set(forward.captured) == {Bucket(1, 1), Bucket(2, 1), Bucket(4, 1), Bucket(4, 7)}
    assert (maker.captures, maker.replays) == (4, 6)
    addresses = {graph.outputs.logits.data_ptr() for graph in forward._graphs.values() if graph is not None}
    assert len(addresses) == 1, "a vocabulary wide, they would take most of the memory of graphs"


def test_without_room_for_graphs_steps_run_eagerly(decoder: Decoder, plain: list[list[int]]) -> None:
    """A capture that fails ends captures; one that fills the room is kept, and is the last."""
    for maker, options, kept in ((FakeGraphs(full_at=1), {}, 1), (FakeGraphs(grows_by=10), {"memory_limit": 15}, 2)):
        made = rig(decoder, maker, **options)
        assert story(made) == plain
        forward = made.runner._captured
        assert isinstance(forward, GraphForward)
        assert len(forward.captured) == kept


def test_bad_logits_end_their_sequence_only(decoder: Decoder, tmp_path: Path) -> None:
    made = rig(decoder, FakeGraphs())
    a, b = (made.add(slot, PROMPT, SamplingParams(temperature=0)) for slot in range(2))
    made.step([Row(a, 0, 11), Row(b, 0, 11)])
    made.runner.kv[0]["v"][16] = float("nan")  # a block of the second sequence
    rows = made.step([Row(s, 11, 1) for s in (a, b)]).rows
    assert [bool(row.error) for row in rows] == [False, True]
    assert "no finite logits at position 12" in rows[1].error


def test_a_step_too_large_for_the_buffers_is_refused(decoder: Decoder) -> None:
    made = rig(decoder, FakeGraphs())
    a = made.add(0, PROMPT, SamplingParams(temperature=0))
    batch = made.batch([Row(a, 0, 11)])
    small = PinnedInputs(SHAPE.__class__(max_context=64, max_sequences=1, token_budget=8, chunk=8, block_size=4,
                                         num_blocks=4), 1, "cpu")  # fmt: skip
    with pytest.raises(ValueError, match="11, 1, 1"):
        small.load(batch, made.runner._sampler.params.choice)


class LateGraphs(FakeGraphs):
    """Counts how often a graph was replayed while the outcome of the one before had not been asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.unasked = self.most_unasked = 0

    def capture(self, run: Callable[[], Outputs]) -> Graph:
        outputs, replay = super().capture(run)

        def counted() -> None:
            self.unasked += 1
            self.most_unasked = max(self.most_unasked, self.unasked)
            replay()

        return Graph(outputs, counted)


def engine_results(folder: Path, maker: LateGraphs | None) -> dict[str, list[int]]:
    """Run greedy, sampled and stopping requests through a whole engine: on graphs, or plainly without a maker."""
    made = build(
        folder, plugins={"attention": "triton" if maker else "torch"}, batch=3, overlap="on" if maker else "off"
    )
    engine, runner = made.engine, made.runner
    engine.executor = made.tap.inner
    if maker is not None:
        put_on_graphs(runner, maker)
        collect = engine.executor.collect

        def asked() -> StepOutput:
            maker.unasked = 0
            return collect()

        engine.executor.collect = asked
    requests = [
        submit("greedy", PROMPT, 10),
        submit("warm", PROMPT[2:], 7, temperature=1.0, top_k=40, seed=7),
        submit("stops", PROMPT[:5], 12, temperature=2.0, seed=9, eos_ids=tuple(range(4, 60))),
        submit("told", PROMPT[1:], 2, logprobs=1),
    ]
    results = run(engine, requests)
    assert not engine.has_work
    return {key: result.ids for (key, _), result in results.items()}


def test_steps_started_before_the_last_was_awaited_give_the_same_tokens(tmp_path: Path) -> None:
    """Tokens pass from step to step on the device, between graphs of different buckets and eager steps."""
    folder, maker = tiny_llama(tmp_path / "model", layers=1), LateGraphs()
    assert engine_results(folder, maker) == engine_results(folder, None)
    assert maker.replays >= 4
    assert maker.most_unasked == 2


def test_steps_in_flight_have_host_buffers_of_their_own(decoder: Decoder) -> None:
    """The device may copy the inputs of a step after those of the next were written."""
    made = rig(decoder, FakeGraphs())
    a = made.add(0, PROMPT, SamplingParams(temperature=0))
    inputs = PinnedInputs(replace(SHAPE, depth=2), 1, "cpu")
    choice = made.runner._sampler.params.choice
    seen = []
    for start, count in ((0, 5), (5, 4), (9, 2)):
        inputs.load(made.batch([Row(a, start, count)]), choice)
        seen.append(inputs._hosts[inputs._turn])
        first = inputs._host_fields[inputs._turn]["token_ids"][:count]
        assert first.tolist() == PROMPT[start : start + count]
    assert seen[0].data_ptr() == seen[2].data_ptr() != seen[1].data_ptr()


def test_idle_times_capture_smallest_first_while_memory_lasts(decoder: Decoder) -> None:
    """What a step needed meanwhile is captured then, and not again; the small ones are those that are kept."""
    maker = FakeGraphs(grows_by=10)
    made, plain = rig(decoder, maker, memory_limit=25), rig(decoder, None)
    forward: Any = made.runner._captured
    seqs = [made.add(slot, PROMPT[:3], SamplingParams(temperature=0)) for slot in range(3)]
    made.step([Row(seq, 0, 3) for seq in seqs])
    assert forward.captured == (), "a prefill is eager"
    ahead = made.runner.prepare()
    next(ahead)
    assert forward.captured == (Bucket(1, 1),)
    made.step([Row(seq, 3, 1) for seq in seqs])
    assert forward.captured == (Bucket(1, 1), Bucket(4, 1)), "captured at its first use"
    assert list(ahead) == [None]
    assert forward.captured == (Bucket(1, 1), Bucket(4, 1), Bucket(2, 1))
    made.advance(seqs[0], (1, 2))
    assert maker.captures == 3, "no room is left: a verify step runs eagerly"
    alone = plain.add(0, PROMPT[:3], SamplingParams(temperature=0))
    while alone.num_tokens < seqs[0].num_tokens:
        plain.advance(alone)
    assert seqs[0].tokens == alone.tokens
    assert seqs[1].tokens == alone.tokens[: seqs[1].num_tokens]
