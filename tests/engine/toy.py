"""A deterministic toy model behind the real Executor interface, and an engine around it.

The toy stores (token, position) of every KV slot it is told to write, and reads its context back
through the block tables it is given. The next token is a function of everything it read, so that a
block freed too early, shared for writing or looked up under a wrong id gives other tokens, or
fails at once because the position found is not the one wanted.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from inferd.engine.batch import Batch, RowOutput, StepOutput
from inferd.engine.builder import BatchBuilder
from inferd.engine.engine import Engine
from inferd.engine.executor import Executor
from inferd.engine.scheduler import Scheduler
from inferd.engine.shape import EngineShape
from inferd.link import SeqError, StepReport, Submit
from inferd.plugin.contracts import KVManager
from inferd.plugin.types import KVGroupSize
from inferd_client.protocol import SamplingParams, TokenLogprob
from inferd_plugins.kv.contiguous import ContiguousKV
from inferd_plugins.kv.paged import PagedKV
from inferd_plugins.kv.recompute import RecomputeKV

VOCAB = 97
MANAGERS: dict[str, type[KVManager]] = {"paged": PagedKV, "contiguous": ContiguousKV, "recompute": RecomputeKV}
_WEIGHTS = np.random.default_rng(7).integers(1, 2**31, 4096)
POISON = -7


def next_token(context: np.ndarray, seed: int) -> int:
    """The toy model: mostly repeats what stood three tokens ago, else draws from the whole context."""
    mixed = (int((context * _WEIGHTS[: len(context)]).sum()) + 31 * seed) * 2654435761 % 2**32
    if mixed >> 8 & 3 and len(context) > 3:
        return int(context[-3])
    return (mixed >> 12) % VOCAB


def expected(prompt: list[int], seed: int, count: int) -> list[int]:
    """What plain decoding gives: the oracle."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(np.array(tokens), seed))
    return tokens[len(prompt) :]


class ToyExecutor(Executor):
    """Runs batches as submitted, in order; at depth 2 a step is computed only when collected."""

    def __init__(self, shape: EngineShape, windows: tuple[int | None, ...] = (None,), depth: int = 1) -> None:
        self.depth = depth
        self.steps_done: Callable[[int], int] = lambda wanted: wanted
        """How many of the steps of a batch are run before the host is wanted."""
        self.size = shape.block_size
        self.windows = windows
        self.kv = np.full((len(windows), shape.num_blocks * shape.block_size, 2), POISON)
        self.seeds: dict[int, int] = {}
        self.last: dict[int, int] = {}
        """By slot: the token it got last."""
        self.num_followed = 0
        """Rows whose token was not known when their step was built."""
        self.broken: set[tuple[int, int]] = set()
        """(seed, position) whose logits are not finite."""
        self.waiting: deque[Batch] = deque()
        self.num_verified = 0
        self.num_accepted = 0
        self.most_tokens = 0
        self.batches: list[tuple[int, int, int]] = []

    def submit(self, batch: Batch) -> None:
        assert len(self.waiting) < self.depth
        self.waiting.append(_copy(batch) if self.depth > 1 else batch)

    def collect(self) -> StepOutput:
        return self.run(self.waiting.popleft())

    def run(self, batch: Batch) -> StepOutput:
        for slot in batch.leave:
            del self.seeds[slot]
        for init in batch.enter:
            assert init.slot not in self.seeds, f"slot {init.slot} is in use"
            self.seeds[init.slot] = init.seed
        self.batches.append(tuple(batch.counts))
        self.most_tokens = max(self.most_tokens, batch.num_tokens)
        self._fill_in(batch)
        if batch.num_steps > 1:
            return self._run_several(batch)
        self._write(batch)
        rows = [self._row(batch, int(b)) for b in batch.sampling_seqs]
        for b, row in zip(batch.sampling_seqs, rows, strict=True):
            self.last[int(batch.seq_slots[b])] = row.ids[-1] if row.ids else 0
        self._check_sample_rows(batch)
        prompts = {b: self._prompt_logprobs(batch, b) for b, _ in batch.prompt_rows}
        return StepOutput(rows, prompts, 0.001)

    def _write(self, batch: Batch) -> None:
        for group in range(len(self.windows)):
            slots = batch.slots[group]
            assert len(set(slots.tolist())) == len(slots), "two tokens go to one KV slot"
            self.kv[group, slots, 0] = batch.token_ids
            self.kv[group, slots, 1] = batch.positions

    def _run_several(self, batch: Batch) -> StepOutput:
        """Decode several tokens a row; one that cannot be chosen is passed on as 0, and ends what the row gets."""
        assert batch.counts.decode == batch.num_tokens
        done = self.steps_done(batch.num_steps)
        ids: list[list[int]] = [[] for _ in range(batch.num_seqs)]
        ended: set[int] = set()
        for step in range(done):
            self._write(batch)
            for b, row in enumerate([self._row(batch, b) for b in range(batch.num_seqs)]):
                ended |= set() if row.ids else {b}
                ids[b] += [] if b in ended else row.ids
                batch.token_ids[b] = row.ids[0] if row.ids else 0
            if step + 1 == done:
                break
            batch.positions += 1
            batch.context_lens += 1
            blocks, offsets = np.divmod(batch.positions, self.size)
            batch.slots[:] = batch.block_tables[:, np.arange(batch.num_seqs), blocks] * self.size + offsets
        rows = [RowOutput(got, None, "" if got else "logits are not finite") for got in ids]
        return StepOutput(rows, {}, 0.001 * done, done)

    def _fill_in(self, batch: Batch) -> None:
        """Put the tokens in that the step before gave."""
        for row in np.flatnonzero(batch.token_ids < 0):
            batch.token_ids[row] = self.last[~int(batch.token_ids[row])]
            self.num_followed += 1

    def _check_sample_rows(self, batch: Batch) -> None:
        wanted: list[int] = []
        for b in batch.sampling_seqs:
            end = int(batch.cu_seqlens[b + 1])
            wanted += range(end - 1 - int(batch.draft_lens[b]), end)
        assert batch.sample_rows.tolist() == wanted

    def _row(self, batch: Batch, b: int) -> RowOutput:
        drafts = int(batch.draft_lens[b])
        end, length = int(batch.cu_seqlens[b + 1]), int(batch.context_lens[b])
        seed = self.seeds[int(batch.seq_slots[b])]
        ids: list[int] = []
        for back in range(drafts, -1, -1):
            context = self._context(batch, b, length - back)
            if (seed, len(context)) in self.broken:
                break
            ids.append(next_token(context, seed))
            if back and int(batch.token_ids[end - back]) != ids[-1]:
                break
        self.num_verified += drafts > 0
        self.num_accepted += max(0, len(ids) - 1)
        if not ids:
            return RowOutput((), None, "logits are not finite")
        return RowOutput(ids, [TokenLogprob(token=i, logprob=-1.0, rank=1) for i in ids])

    def _context(self, batch: Batch, b: int, length: int) -> np.ndarray:
        """Read the first `length` tokens through the block tables of every group."""
        tokens = np.zeros(length, np.int64)
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, length - window)
            positions = np.arange(first, length)
            blocks = batch.block_tables[group, b, positions // self.size]
            found = self.kv[group, blocks * self.size + positions % self.size]
            assert (found[:, 1] == positions).all(), f"KV of positions {positions} holds {found[:, 1]}"
            if window is None:
                tokens[:] = found[:, 0]
            elif any(w is None for w in self.windows):
                assert (tokens[first:] == found[:, 0]).all(), "the groups hold different tokens"
            else:
                tokens[first:] = found[:, 0]
        return tokens

    def _prompt_logprobs(self, batch: Batch, b: int) -> list[TokenLogprob]:
        first, end = int(batch.cu_seqlens[b]), int(batch.cu_seqlens[b + 1])
        return [TokenLogprob(token=0, logprob=-float(p), rank=1) for p in batch.positions[first:end] + 1]


def _copy(batch: Batch) -> Batch:
    names = ("token_ids", "positions", "cu_seqlens", "context_lens", "block_tables", "slots", "sample_rows")
    for name in (*names, "seq_slots", "draft_lens", "sampling_seqs"):
        setattr(batch, name, getattr(batch, name).copy())
    return batch


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Result:
    """All that one choice of a request was told."""

    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    first_scheduled: float | None = None


class Rig:
    """An engine on the toy executor, with everything it reported gathered by request and choice."""

    def __init__(
        self,
        *,
        kv: str = "paged",
        blocks: int = 64,
        block_size: int = 4,
        budget: int = 64,
        chunk: int = 64,
        batch: int = 8,
        context: int = 128,
        max_draft: int = 0,
        drafter: object = None,
        prefix_cache: bool = True,
        windows: tuple[int | None, ...] = (None,),
        depth: int = 1,
        **options: object,
    ) -> None:
        self.shape = EngineShape(
            max_context=context,
            max_sequences=batch,
            token_budget=budget,
            chunk=chunk,
            block_size=block_size,
            num_blocks=blocks,
            max_draft=max_draft,
        )
        self.kv = MANAGERS[kv]()
        self.kv.bind([KVGroupSize(blocks, window) for window in windows], block_size, prefix_cache=prefix_cache)
        self.clock = Clock()
        self.executor = ToyExecutor(self.shape, windows, depth)
        self.scheduler = Scheduler(self.shape, self.kv, clock=self.clock, prefix_cache=prefix_cache, **options)
        builder = BatchBuilder(self.shape, len(windows))
        self.engine = Engine(self.scheduler, self.executor, drafter, builder, clock=self.clock, vocab_size=VOCAB)
        self.results: dict[tuple[str, int], Result] = {}
        self.errors: dict[str, SeqError] = {}
        self.reports: list[StepReport] = []
        self.warnings: list[str] = []
        self.check_each_step = True

    def submit(self, key: str, prompt: list[int], count: int | None = 8, **fields: object) -> None:
        extra = {f: fields.pop(f) for f in ("client", "priority", "deadline", "queue_deadline") if f in fields}
        eos = fields.pop("eos_ids", ())
        arrival = fields.pop("arrival", self.clock.now)
        sampling = SamplingParams(max_tokens=count, **({"seed": 0} | fields))
        self.engine.submit(
            Submit(
                key=key,
                prompt=prompt,
                sampling=sampling,
                eos_ids=eos,
                arrival=arrival,
                **({"client": "c"} | extra),
            )
        )

    def step(self) -> StepReport:
        self.clock.now += 0.001
        report = self.engine.step()
        self.reports.append(report)
        self.warnings += report.warnings
        for output in report.outputs:
            result = self.results.setdefault((output.key, output.choice), Result())
            assert result.finish is None, f"{output.key}/{output.choice} goes on after its end"
            result.ids += output.ids
            result.logprobs += output.logprobs or ()
            result.finish, result.stop_token = output.finish, output.stop_token
            result.prompt_logprobs = output.prompt_logprobs or result.prompt_logprobs
            result.cached, result.preemptions = output.cached_tokens, output.preemptions
            result.drafted, result.accepted = output.drafted, output.accepted
            result.first_scheduled = output.first_scheduled or result.first_scheduled
        for error in report.errors:
            assert error.key not in self.errors, f"{error.key} fails twice"
            self.errors[error.key] = error
        if self.check_each_step:
            assert self.kv.problems() == []
        return report

    def run(self, most_steps: int = 5000) -> Rig:
        for _ in range(most_steps):
            if not self.engine.has_work:
                return self
            self.step()
        raise AssertionError(f"work is left after {most_steps} steps")

    def assert_empty(self) -> None:
        """H2: nothing is left of any request."""
        stats = self.kv.stats()
        assert stats.free_blocks == stats.total_blocks
        assert self.kv.problems() == []
        scheduler = self.scheduler
        assert not scheduler.has_work
        assert not scheduler.requests
        assert len(scheduler.running) == 0
        assert len(scheduler.admission) == 0
        assert not scheduler.running.held
        assert len(scheduler.running._free_slots) == self.shape.max_sequences
        assert not scheduler.admission._parked
        assert not scheduler.admission.queue._lanes
        assert not len(scheduler.admission.queue.shares)
        assert scheduler.admission.queue.num_preempted == 0
        assert len(scheduler._deadlines) == 0
        assert not scheduler.journal._dropped
        assert not scheduler.journal._outcomes


class OracleDraft:
    """Proposes what the toy will say, each token wrong with some chance."""

    active = True

    def __init__(
        self, seeds: dict[int, int] | None = None, wrong: float = 0.3, rng: random.Random | None = None
    ) -> None:
        self.rng = rng or random.Random(1)
        self.wrong = wrong
        self.seeds = seeds or {}
        self.observed: list[tuple[int, int, int]] = []
        self.dropped: list[int] = []

    def propose(self, sequences, k):
        out = []
        for sequence in sequences:
            guess: list[int] = []
            for _ in range(min(k, sequence.limit)):
                token = next_token(np.array([*sequence.tokens, *guess]), self.seeds.get(sequence.key, 0))
                guess.append((token + 1) % VOCAB if self.rng.random() < self.wrong else token)
            out.append(guess)
        return out

    def observe(self, outcomes):
        self.observed += outcomes

    def drop(self, key):
        self.dropped.append(key)
