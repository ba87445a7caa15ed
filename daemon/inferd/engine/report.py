"""What the front hears of a step besides tokens: where requests stand, and gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from inferd.engine.request import Phase
from inferd.link import SeqState, StepStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferd.engine.batch import Plan
    from inferd.engine.request import Sequence
    from inferd.engine.scheduler import Scheduler
    from inferd.link import SeqOutput


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

    __slots__ = ("accepted", "decode_s", "decode_tokens", "drafted", "prefill_s", "prefill_tokens", "verifying")

    def __init__(self) -> None:
        self.prefill_s = self.decode_s = 0.0
        self.prefill_tokens = self.decode_tokens = self.drafted = self.accepted = self.verifying = 0

    def add(self, plan: Plan, outputs: list[SeqOutput], elapsed_s: float, accepted: int) -> None:
        counts = plan.counts
        first = counts.decode + counts.verify
        self.verifying = counts.verify
        self.prefill_tokens = sum(row.num_tokens for row in plan.rows[first:])
        self.decode_tokens = sum(len(output.ids) for output in outputs)
        self.drafted = sum(len(row.drafts) for row in plan.rows[counts.decode : first])
        self.accepted = accepted
        share = self.prefill_tokens / max(1, plan.num_tokens)
        self.prefill_s = elapsed_s * share
        self.decode_s = elapsed_s - self.prefill_s


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
    )
