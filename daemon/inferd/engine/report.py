"""What the front hears of a step besides tokens: where requests stand, gauges, and whose time it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from inferd.engine.demand import Demand
from inferd.engine.request import Phase
from inferd.link import Charges, SeqState, StepStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferd.engine.batch import Plan, Row
    from inferd.engine.request import Sequence
    from inferd.engine.scheduler import Scheduler
    from inferd.link import Overlap, SeqOutput


def seq_states(scheduler: Scheduler, requests: Iterable[str]) -> list[SeqState]:
    """Tell where those of the requests stand that are unfinished, by their first unfinished choice."""
    gate = scheduler.admission.gate
    return [_state(key, seqs[0], gate) for key in requests if (seqs := scheduler.requests.get(key))]


def _state(key: str, seq: Sequence, gate: str) -> SeqState:
    if seq.phase is Phase.DECODE:
        return SeqState(key=key, state="decode", done=seq.num_output, total=seq.max_tokens)
    state: Literal["waiting", "prefill", "preempted"] = "prefill"
    reason = ""
    if seq.phase is Phase.WAITING:
        state = "preempted" if seq.preemptions else "waiting"
        reason = seq.wait_reason or gate
    return SeqState(key=key, state=state, done=seq.num_computed, total=seq.num_tokens, reason=reason)


class Work:
    """What one collected step did; its time is charged to the phases by their share of tokens."""

    __slots__ = (
        "accepted",
        "charges",
        "decode_s",
        "decode_tokens",
        "demand",
        "drafted",
        "emitted",
        "kv_bytes",
        "later_steps",
        "overlap",
        "prefill_flops",
        "prefill_s",
        "prefill_tokens",
        "verifying",
        "weight_bytes",
    )

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.prefill_s = self.decode_s = self.prefill_flops = self.kv_bytes = 0.0
        self.prefill_tokens = self.decode_tokens = self.drafted = self.accepted = self.emitted = self.verifying = 0
        self.weight_bytes = self.later_steps = 0
        self.charges = Charges()
        self.overlap: Overlap | None = None

    def add(self, plan: Plan, outputs: list[SeqOutput], elapsed_s: float, accepted: int, num_steps: int = 1) -> None:
        counts = plan.counts
        first = counts.decode + counts.verify
        decoding, prefilling = plan.rows[:first], plan.rows[first:]
        self.verifying, self.later_steps = counts.verify, num_steps - 1
        self.prefill_tokens = sum([row.num_tokens for row in prefilling])
        self.decode_tokens = sum([len(output.ids) for output in outputs])
        self.drafted = sum([len(row.drafts) for row in plan.rows[counts.decode : first]])
        self.accepted = accepted
        if counts.verify:
            verified = {(row.seq.request, row.seq.choice) for row in plan.rows[counts.decode : first]}
            self.emitted = sum([len(output.ids) for output in outputs if (output.key, output.choice) in verified])
        share = self.prefill_tokens / max(1, plan.num_tokens)
        self.prefill_s = elapsed_s * share
        self.decode_s = elapsed_s - self.prefill_s
        reads = self.demand.kv_reads(decoding, num_steps)
        self.prefill_flops = self.demand.prefill_flops(prefilling)
        self.weight_bytes = self.demand.weight_bytes * num_steps if decoding else 0
        self.kv_bytes = sum(reads)
        self.charges = Charges(
            prefill=by_tokens(prefilling, self.prefill_s),
            decode=by_bytes(decoding, reads, self.weight_bytes, self.decode_s),
        )


def by_tokens(rows: list[Row], seconds: float) -> dict[str, float]:
    """Split the time of prefill over its requests by tokens."""
    charged: dict[str, float] = {}
    total = sum([row.num_tokens for row in rows])
    for row in rows:
        request = row.seq.request
        charged[request] = charged.get(request, 0.0) + seconds * row.num_tokens / total
    return charged


def by_bytes(rows: list[Row], reads: list[float], weight_bytes: int, seconds: float) -> dict[str, float]:
    """Split the time of decode over its requests: reading weights by rows, scanning KV by each row's bytes."""
    charged: dict[str, float] = {}
    if not rows:
        return charged
    shared = (weight_bytes or 1) / len(rows)
    scale = seconds / (shared * len(rows) + sum(reads))
    for row, read in zip(rows, reads, strict=True):
        request = row.seq.request
        charged[request] = charged.get(request, 0.0) + (shared + read) * scale
    return charged


def step_stats(scheduler: Scheduler, work: Work, now: float) -> StepStats:
    """Read the gauges after a step."""
    kv = scheduler.kv.stats()
    running = scheduler.running
    return StepStats(
        now=now,
        prefill_s=work.prefill_s,
        decode_s=work.decode_s,
        running=len(running),
        waiting=len(scheduler.admission),
        prefilling=len(running.prefilling),
        decoding=len(running.decoding),
        verifying=work.verifying,
        preempted=scheduler.admission.queue.num_preempted,
        kv_total=kv.total_blocks,
        kv_free=kv.free_blocks,
        kv_cached=kv.cached_blocks,
        prefix_queries=kv.queries,
        prefix_hits=kv.hits,
        preemptions=scheduler.journal.num_preemptions,
        prefill_tokens=work.prefill_tokens,
        decode_tokens=work.decode_tokens,
        drafted=work.drafted,
        accepted=work.accepted,
        prefill_flops=work.prefill_flops,
        weight_bytes=work.weight_bytes,
        kv_bytes=work.kv_bytes,
        emitted=work.emitted,
        overlap=work.overlap,
        later_steps=work.later_steps,
    )
