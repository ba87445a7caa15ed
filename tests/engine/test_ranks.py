"""A model spread over processes gives what one process gives, and a lost rank ends the step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from inferd.config.schema import Config, Plugins
from inferd.config.schema import Engine as EngineConfig
from inferd.engine.batch import Batch, RowOutput, SlotInit, StepOutput
from inferd.engine.build import build_engine
from inferd.engine.offline import Results, run
from inferd.engine.rank_link import RankOutput, pack_batch, rank_in, rank_out, unpack_batch
from inferd.engine.ranks import RankExecutor
from inferd.engine.settings import WorkerSettings
from inferd.link import Submit, pack
from inferd.load.errors import LoadError
from inferd.plugin.types import StepCounts
from inferd_client.endpoints import MAX_SOCKET_PATH
from inferd_client.protocol import SamplingParams, TokenLogprob
from tests.tiny import tiny_llama

torch.set_num_threads(1)


def settings(model: Path, parallel: str, *, runtime: str = "", **options: Any) -> WorkerSettings:
    config = Config(
        engine=EngineConfig(
            device="cpu", threads=1, max_sequences=4, block_size=4, kv_blocks=80, token_budget=16, chunk=8, max_draft=3
        ),
        plugins=Plugins(parallel=parallel, draft="ngram"),
        plugin={"parallel": {"layers": options}} if options else {},
    )
    return WorkerSettings(name="tiny", path=str(model), config=config, runtime=runtime)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), layers=3)


@pytest.fixture
def executor_of() -> Iterator[Any]:
    """Build engines and end their ranks afterwards."""
    built: list[Any] = []

    def build(settings: WorkerSettings) -> Any:
        engine, card = build_engine(settings)
        built.append(engine.executor)
        return engine, card

    yield build
    for executor in built:
        executor.close()


PROMPTS = [[5, 9, 5, 9, 5, 9, 5], [17], list(range(20, 37)), [3, 4, 5]]


def submits() -> list[Submit]:
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1.0, seed=3, max_tokens=9, ignore_eos=True, n=2),
        SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, prompt_logprobs=1),
        SamplingParams(temperature=0.7, seed=8, top_p=0.9, max_tokens=15, ignore_eos=True),
    ]
    pairs = enumerate(zip(PROMPTS, sampling, strict=True))
    return [
        Submit(key=f"r{i}", client="c", prompt=p, sampling=msgspec.structs.replace(s, seed=s.seed or 0))
        for i, (p, s) in pairs
    ]


def ids(results: Results) -> dict[Any, list[int]]:
    return {key: result.ids for key, result in results.items()}


def test_two_ranks_give_the_bits_of_one(model: Path, executor_of: Any) -> None:
    alone, _ = executor_of(settings(model, "single"))
    engine, card = executor_of(settings(model, "layers"))
    assert isinstance(engine.executor, RankExecutor)
    assert card.plugins["parallel"] == "layers"
    want, got = run(alone, submits()), run(engine, submits())
    assert ids(got) == ids(want)
    assert all(len(r.ids) > 5 for r in got.values())
    for key, result in got.items():
        assert [(p.token, p.logprob) for p in result.logprobs] == [(p.token, p.logprob) for p in want[key].logprobs]
        assert result.prompt_logprobs == want[key].prompt_logprobs
    assert engine.executor.weight_bytes == alone.executor.runner.decoder.weight_bytes


def test_each_rank_holds_only_its_layers(model: Path, executor_of: Any) -> None:
    engine, card = executor_of(settings(model, "layers", ranks=3))
    runner = engine.executor._runner
    assert [block.attention.layer.index for block in runner.decoder.blocks] == [0]
    assert runner.decoder.head is None
    assert runner.decoder.weight_bytes < card.weight_bytes / 2
    assert len(engine.executor._ranks) == 2
    assert all(len(result.ids) == 15 for key, result in run(engine, submits()).items() if key[0] == "r3")


def test_a_lost_rank_ends_the_step(model: Path, executor_of: Any) -> None:
    engine, _ = executor_of(settings(model, "layers"))
    for submit in submits():
        engine.submit(submit)
    engine.step()
    os.kill(engine.executor._ranks[0].child.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"rank 1 is lost: SIGKILL"):
        run(engine, [])


def test_a_rank_that_cannot_load_is_a_load_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_plugins(resolution: Any) -> Any:
        return tuple(msgspec.structs.replace(e, version="0.0.1") for e in real(resolution))

    import inferd.engine.ranks as ranks

    real = ranks.manifest
    monkeypatch.setattr(ranks, "manifest", other_plugins)
    with pytest.raises(LoadError, match=r"rank 1 .*other plugins.*version expected '0.0.1'"):
        build_engine(settings(model, "layers"))


def test_more_ranks_than_layers_are_refused(model: Path) -> None:
    with pytest.raises(ValueError, match="4 ranks but 3 layers"):
        build_engine(settings(model, "layers", ranks=4))


WORKER = """
import sys, time
from pathlib import Path
from inferd.engine.build import build_engine
from inferd.engine.settings import WorkerSettings
engine, _ = build_engine(WorkerSettings.load(Path(sys.argv[1])))
print(*[rank.child.pid for rank in engine.executor._ranks], flush=True)
time.sleep(600)
"""


def test_ranks_die_with_their_worker(model: Path, tmp_path: Path) -> None:
    """In the longest runtime folder there can be, where their sockets must fit as well."""
    runtime = tmp_path / ("x" * (MAX_SOCKET_PATH - len(str(tmp_path)) - len("//control.sock")))
    runtime.mkdir(mode=0o700)
    file = tmp_path / "settings.json"
    settings(model, "layers", runtime=str(runtime)).save(file)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(file)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    rank = int(worker.stdout.readline())
    os.kill(rank, 0)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 60
    while _runs(rank):
        assert time.monotonic() < deadline, "the rank outlives its worker"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_batches_and_outputs_survive_the_wire() -> None:
    init = SlotInit(2, 7, SamplingParams(temperature=0.5, logit_bias={3: 1.0}), 2, [1, 2, 3], (0,), ((4, 5),))
    int32 = np.arange(6, dtype=np.int32)
    batch = Batch(
        counts=StepCounts(1, 0, 1),
        token_ids=int32,
        positions=int32,
        cu_seqlens=int32[:3],
        context_lens=int32[:2],
        block_tables=np.arange(12, dtype=np.int32).reshape(1, 2, 6)[:, :, ::2],
        slots=np.arange(6, dtype=np.int64)[None],
        sample_rows=int32[:2],
        seq_slots=int32[:2],
        draft_lens=int32[:0],
        sampling_seqs=int32[:2],
        prompt_rows=((1, 3),),
        enter=[init],
        leave=[9],
    )
    step: Any = rank_in.decode(pack(pack_batch(batch)))
    back = unpack_batch(step)
    for name in ("token_ids", "block_tables", "slots", "draft_lens"):
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
        assert getattr(back, name).dtype == getattr(batch, name).dtype
    assert (back.counts, back.prompt_rows, back.enter, back.leave) == (batch.counts, ((1, 3),), [init], [9])
    assert back.token_ids.flags.writeable
    output = StepOutput(
        [RowOutput([1, 2], [TokenLogprob(1, -0.5, 1, ((1, -0.5),))] * 2), RowOutput([], error="nan")], {0: []}, 0.1
    )
    received: Any = rank_out.decode(pack(RankOutput(output=output)))
    assert received.output == output
