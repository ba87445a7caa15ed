"""A real engine in this process, watched: which rows ran, the logits they were sampled from, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.batch import Batch, StepOutput
from inferd.engine.build import build_engine
from inferd.engine.executor import Executor
from inferd.engine.local import LocalExecutor
from inferd.engine.offline import Results, run
from inferd.engine.request import Sequence as EngineSequence
from inferd.engine.sampler.rows import sample_rows
from inferd.engine.settings import WorkerSettings
from inferd.link import ModelCard, StepReport, Submit
from inferd_client.protocol import SamplingParams

BLOCK_SIZE = 4
CONTEXT = 64


class Row(NamedTuple):
    """One sampled row: `context` are all tokens before the one it chooses."""

    request: str
    choice: int
    num_prompt: int
    context: tuple[int, ...]
    logits: torch.Tensor


RowHook = Callable[[Row], None]
"""May change `row.logits` in place before they are sampled from."""


class TappedDecoder:
    """The engine's decoder with its logits of the sampled rows on offer."""

    def __init__(self, decoder: Any, take: Callable[[torch.Tensor], None]) -> None:
        self._decoder = decoder
        self._take = take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        logits = self._decoder.logits(hidden, out)
        self._take(logits)
        return logits


class TappedExecutor(Executor):
    """The local executor, telling which sequence each row of a step belongs to."""

    def __init__(self, inner: LocalExecutor, running: Callable[[], Iterator[EngineSequence]]) -> None:
        self.inner = inner
        self.depth = inner.depth
        self.rows: list[Row] = []
        self.counts: Counter[str] = Counter()
        self.before_step: Callable[[Batch], None] | None = None
        self.on_row: RowHook | None = None
        self.keep_rows = True
        self.other_logits: list[torch.Tensor] = []
        """Of rows that are not sampled: made for prompt log-probabilities, in the order of their chunks."""
        self._running = running
        self._pending: list[tuple[EngineSequence, tuple[int, ...]]] | None = None
        """Of the rows of the step that runs: their sequence, and the tokens before the one they choose."""
        runner: Any = inner.runner
        runner.decoder = TappedDecoder(runner.decoder, self._take)

    def submit(self, batch: Batch) -> None:
        by_slot = {seq.slot: seq for seq in self._running()}
        self._count(batch)
        rows = sample_rows(batch)
        self._pending = []
        for slot, row in zip(rows.slots.tolist(), range(len(rows.slots)), strict=True):
            seq = by_slot[slot]
            coming = [int(self.inner.runner._last[slot])] if seq.num_sampling else []
            self._pending.append((seq, (*seq.tokens, *coming, *rows.before(row))))
        if self.before_step is not None:
            self.before_step(batch)
        self.inner.submit(batch)

    def _count(self, batch: Batch) -> None:
        self.counts["steps"] += 1
        self.counts["followed"] += int((batch.token_ids < 0).sum())
        self.counts["prefill rows"] += batch.counts.prefill
        self.counts["verify rows"] += batch.counts.verify
        self.counts["entered"] += len(batch.enter)
        self.counts["mixed steps"] += bool(batch.counts.prefill and batch.counts.decode + batch.counts.verify)
        self.counts["widest"] = max(self.counts["widest"], batch.num_seqs)
        self.counts["longest row"] = max(self.counts["longest row"], int(batch.cu_seqlens[1:].max()))
        if batch.enter and batch.num_seqs > len(batch.enter):
            self.counts["joined"] += 1

    def _take(self, logits: torch.Tensor) -> None:
        """Read logits; the first of a step are those of its sampled rows, if it has any."""
        pending, self._pending = self._pending, None
        if not pending:
            if self.keep_rows:
                self.other_logits.append(logits.clone())
            return
        assert len(logits) == len(pending)
        for (seq, context), values in zip(pending, logits, strict=True):
            row = Row(seq.request, seq.choice, seq.num_prompt, context, values)
            if self.on_row is not None:
                self.on_row(row)
            if self.keep_rows:
                self.rows.append(row._replace(logits=values.clone()))

    def collect(self) -> StepOutput:
        return self.inner.collect()


@dataclass
class Rig:
    """A loaded engine with its tap. Built once, it runs any number of rounds."""

    engine: Any
    card: ModelCard
    tap: TappedExecutor
    reports: list[StepReport] = field(default_factory=list)
    check_books: bool = True
    """Look over the KV manager's books after each step; slow for large pools."""

    @property
    def runner(self) -> Any:
        return self.tap.inner.runner

    @property
    def scheduler(self) -> Any:
        return self.engine.scheduler

    @property
    def preemptions(self) -> int:
        return self.scheduler.journal.num_preemptions

    @property
    def hits(self) -> int:
        return self.scheduler.kv.stats().hits

    @property
    def accepted(self) -> int:
        return self.scheduler.journal.num_accepted

    def run(self, requests: Sequence[Submit]) -> Results:
        """Run requests to their end; every step's books must be right."""
        return run(self.engine, requests, on_step=self._check)

    def step(self) -> StepReport:
        report = self.engine.step()
        self._check(report)
        return report

    def _check(self, report: StepReport) -> None:
        self.reports.append(report)
        assert report.warnings == ()
        assert not self.check_books or self.scheduler.kv.problems() == []

    def assert_empty(self) -> None:
        """H2: every block is free and nothing is left of any request."""
        scheduler = self.scheduler
        stats = scheduler.kv.stats()
        assert stats.free_blocks == stats.total_blocks
        assert scheduler.kv.problems() == []
        assert not self.engine.has_work
        assert len(scheduler.running) == len(scheduler.admission) == len(scheduler.running.held) == 0
        assert len(scheduler.running._free_slots) == scheduler.shape.max_sequences
        assert {name: size for name, size in self.dict_sizes().items() if size} == {}

    def dict_sizes(self) -> dict[str, int]:
        """Count what is kept per request, wherever it is kept.

        The sampler hears of the slots that ended with the next batch, so those count as gone.
        """
        scheduler, sampler, runner = self.scheduler, self.runner._sampler, self.runner
        ended = set(scheduler.running.left)
        held = scheduler.kv._held if hasattr(scheduler.kv, "_held") else scheduler.kv._tables
        indexes = getattr(self.engine.drafter, "_indexes", ())
        return {
            "requests": len(scheduler.requests),
            "kv": len(held),
            "parked": len(scheduler.admission._parked),
            "held": scheduler.admission.num_held,
            "lanes": len(scheduler.admission.queue._lanes),
            "debts": len(scheduler.admission.queue.shares),
            "deadlines": len(scheduler._deadlines),
            "dropped": len(scheduler.journal._dropped),
            "outcomes": len(scheduler.journal._outcomes),
            "in flight": len(self.engine._in_flight),
            "drafts": len(indexes),
            "edits": len(sampler._edits.keys() - ended),
            "history": len(sampler._history._rows.keys() - ended),
            "prompts": len(runner._prompts.keys() - ended),
        }


def build(
    path: Path,
    *,
    blocks: int = 64,
    chunk: int = CONTEXT,
    batch: int = 6,
    budget: int = 0,
    max_draft: int = 4,
    plugins: dict[str, str] | None = None,
    draft: dict[str, Any] | None = None,
    context: int = CONTEXT,
    block_size: int = BLOCK_SIZE,
    **engine: Any,
) -> Rig:
    """Load a model as the worker does, with small sizes; `draft` are the options of the draft plugin.

    Linear layers are torch's in float32: the native ones round activations to int8, which the
    tolerances here would not forgive, and record the step, which the tap could not look into.
    """
    pins = plugins or {}
    drafting = pins.get("draft", "none") != "none"
    sizes = {
        "dtype": "fp32",
        "device": "cpu",
        "linear": "torch",
        "block_size": block_size,
        "kv_blocks": blocks,
        "max_context": min(context, blocks * block_size),
        "max_sequences": batch,
        "chunk": chunk,
        "max_draft": max_draft,
        "token_budget": budget or max(chunk, batch * (1 + max_draft * drafting)),
    }
    options = {"draft": {pins["draft"]: draft}} if draft else {}
    config = Config(
        engine=msgspec.convert(sizes | engine, Engine), plugins=msgspec.convert(pins, Plugins), plugin=options
    )
    built, card = build_engine(WorkerSettings(name="tiny", path=str(path), config=config))
    assert isinstance(built.executor, LocalExecutor)
    running = built.scheduler.running
    tap = TappedExecutor(built.executor, lambda: iter([*running.prefilling, *running.decoding]))
    built.executor = tap
    return Rig(built, card, tap)


def submit(key: str, prompt: Sequence[int], max_tokens: int | None = 12, **fields: Any) -> Submit:
    """Make a request; greedy unless it says otherwise."""
    names = ("client", "eos_ids", "grammar", "bad_word_ids", "priority", "deadline")
    outer: dict[str, Any] = {"client": "c"}
    outer |= {name: fields.pop(name) for name in names if name in fields}
    sampling = SamplingParams(**({"temperature": 0.0, "seed": 0, "max_tokens": max_tokens} | fields))
    assert sampling.problem() is None
    return Submit(key=key, prompt=list(prompt), sampling=sampling, **outer)
