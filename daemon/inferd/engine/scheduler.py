"""Who runs in the next step, and what its outcome means. No torch, no numpy, no clock of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from inferd.engine.admission import Admission
from inferd.engine.commit import add_prompt_logprobs, commit_row, computed_after
from inferd.engine.deadlines import Deadlines
from inferd.engine.fairness import OUTPUT_WEIGHT
from inferd.engine.journal import Journal
from inferd.engine.multi_step import MultiStep
from inferd.engine.pace import Pace
from inferd.engine.planner import Drafts, Planner
from inferd.engine.request import Phase
from inferd.engine.running import Running
from inferd.link import SeqError, SeqOutput
from inferd.plugin.types import DraftSequence
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.engine.batch import Plan, Row, RowOutput, StepOutput
    from inferd.engine.request import Sequence
    from inferd.engine.shape import EngineShape
    from inferd.plugin.contracts import KVManager
    from inferd_client.protocol import FinishReason


class Scheduler:
    """One token budget a step: decodes and verifications first, then prefill chunks, then admission.

    A step is `schedule`, `advance`, `commit`; with more steps in flight, `schedule` may come again
    before the first `commit`: the token still being chosen then counts as there. A sequence that ends with
    it has one row too many in flight, whose outcome is dropped. No sequence loses its blocks meanwhile:
    where they run out, nothing is planned before the steps in flight are committed.
    """

    def __init__(
        self,
        shape: EngineShape,
        kv: KVManager,
        *,
        batching: Literal["continuous", "static"] = "continuous",
        skip_ahead: int = 16,
        ageing_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        prefix_cache: bool = True,
        max_verify: int | None = None,
        step_s: float = 0.0,
        most_steps: int = 1,
        multi_step_s: float = 0.0,
    ) -> None:
        """`most_steps` of plain decoding fit into one call, which should then take `multi_step_s` at most."""
        self.shape = shape
        self.kv = kv
        self.running = Running(shape, kv)
        self.admission = Admission(kv, skip_ahead=skip_ahead, ageing_s=ageing_s)
        self.max_draft = shape.max_draft if max_verify is None else min(shape.max_draft, max_verify)
        if not kv.retains:
            self.max_draft = 0
        self.journal = Journal()
        self.pace = Pace(step_s)
        self._static = batching == "static"
        self._siblings_wait = prefix_cache and kv.retains and not self._static
        self._planner = Planner(
            shape,
            self.running,
            self.admission,
            self.journal,
            self.pace,
            max_draft=self.max_draft,
            static=self._static,
            clock=clock,
        )
        most_steps = most_steps if kv.retains and not self.max_draft else 1
        self._multi_step = MultiStep(self.running, self.admission, self.pace, most=most_steps, limit_s=multi_step_s)
        self._requests: dict[str, list[Sequence]] = {}
        self._deadlines = Deadlines()
        self._steps_in_flight = 0

    # --- requests -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._requests) or self._steps_in_flight > 0

    @property
    def all_held(self) -> bool:
        """True when there is work, but none that may run yet."""
        waiting = len(self.admission)
        return 0 < waiting == self.admission.num_held and not len(self.running) and not self.running.held

    @property
    def requests(self) -> dict[str, list[Sequence]]:
        """Unfinished sequences by request; to be read only."""
        return self._requests

    def add(self, seqs: list[Sequence], *, hold: str = "") -> None:
        """Queue the sequences of one request, choice 0 first; with `hold`, a reason, at its `release` only."""
        first = seqs[0]
        assert first.request not in self._requests, f"request {first.request!r} is queued twice"
        unfinished = self._requests[first.request] = list(seqs)
        self._deadlines.add(first.deadline, "deadline", unfinished)
        self._deadlines.add(first.queue_deadline, "queue", unfinished)
        self.journal.changed(first.request)
        if hold:
            self.admission.hold(seqs, hold)
        else:
            self._queue(seqs)

    def release(self, request: str) -> None:
        """Queue what is held of a request."""
        self.journal.changed(request)
        self._queue(self.admission.unhold(request))

    def _queue(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            leader = seq.leader
            if leader is not None and self._siblings_wait and leader.phase is not Phase.FINISHED:
                self.admission.park(seq, leader)
            else:
                self.admission.queue.push(seq)

    def fail(self, request: str, code: Code, message: str) -> SeqError:
        """End all of an unfinished request with an error."""
        return self._fail(self._requests[request][0], code, message)

    def abort(self, request: str, choice: int | None = None) -> None:
        """End a request or one choice of it, in whatever state; unknown ones have ended already."""
        for seq in list(self._requests.get(request, ())):
            if choice is None or seq.choice == choice:
                self._end(seq, "cancelled")

    def expire(self, now: float) -> list[SeqError]:
        """End requests past their time."""
        errors = []
        for kind, at, seqs in self._deadlines.due(now):
            if not seqs:
                continue
            first = seqs[0]
            where = "the queue" if kind == "queue" else f"state {first.phase.value}"
            message = f"still in {where} {now - first.arrival:.3f} s after arrival, {first.num_output} tokens generated"
            errors.append(self._fail(first, Code.DEADLINE_EXCEEDED, message, limit=at - first.arrival))
        return errors

    # --- a step ---------------------------------------------------------------------------------

    def decoding(self) -> list[DraftSequence]:
        """Return the sequences that could verify drafts in the next step."""
        if not self.max_draft:
            return []
        return [
            DraftSequence(seq.key, seq.tokens, limit)
            for seq in self.running.decoding
            if not seq.num_inflight and (limit := min(self.max_draft, seq.limit - len(seq.tokens))) > 0
        ]

    def schedule(self, drafts: Drafts) -> Plan:
        """Choose the rows of the next step and reserve their slots."""
        plan = self._planner.plan(drafts, ahead=self._steps_in_flight > 0)
        if not plan.rows:
            self._check_stuck()
            return plan
        plan.entered, self.running.entered = self.running.entered, []
        plan.left, self.running.left = self.running.left, []
        plan.num_steps = self._multi_step.steps_of(plan)
        return plan

    def _check_stuck(self) -> None:
        """Raise when there is work, nothing in flight and still nothing to run: that is a bug."""
        if self._requests and not self._steps_in_flight and not self.all_held:
            raise RuntimeError(
                f"nothing to run although {len(self.running)} sequences run and {len(self.admission)} wait; "
                f"{self.kv.stats().free_blocks} of {self.kv.stats().total_blocks} blocks are free"
            )

    def advance(self, plan: Plan) -> None:
        """Note that a plan is in flight."""
        self._steps_in_flight += 1
        for row in plan.rows:
            row.seq.num_inflight += row.num_tokens
            row.seq.num_sampling += row.samples

    def commit(self, plan: Plan, out: StepOutput) -> tuple[list[SeqOutput], list[SeqError]]:
        """Take in what the oldest plan in flight gave: outputs for the front, and failed requests."""
        self._steps_in_flight -= 1
        num_prefill = sum([row.num_tokens for row in plan.rows[plan.counts.decode + plan.counts.verify :]])
        self.pace.observe(plan.num_tokens - num_prefill, num_prefill, out.elapsed_s / out.num_steps)
        outputs: list[SeqOutput] = []
        errors: list[SeqError] = []
        results = iter(out.rows)
        for index, row in enumerate(plan.rows):
            seq = row.seq
            seq.num_inflight -= row.num_tokens
            seq.num_sampling -= row.samples
            result = next(results) if row.samples else None
            if seq.finish is not None:
                self._leave(seq)
                continue
            if index in out.prompt_logprobs or seq.needs_prompt_rows:
                add_prompt_logprobs(row, out.prompt_logprobs.get(index, ()))
            if result is None:
                self._computed(seq, row.start + row.num_tokens)
            elif seq.matcher is not None and (why := seq.matcher.error):
                where = f"after {seq.num_output} tokens: {why}"
                errors.append(self._fail(seq, Code.GRAMMAR_INVALID, where))
            elif result.ids:
                outputs.append(self._take(row, result))
            else:
                seq.reusable = False
                message = result.error or "the model gave no finite logits"
                errors.append(self._fail(seq, Code.NUMERIC_ERROR, message))
        return outputs, errors

    def _take(self, row: Row, result: RowOutput) -> SeqOutput:
        """Add sampled ids to a sequence, settle its KV, and end it if it stops."""
        seq = row.seq
        first = not seq.num_output
        ids, logprobs = commit_row(row, result)
        self.admission.queue.shares.charge(seq.client, OUTPUT_WEIGHT * len(ids))
        self._computed(seq, computed_after(row, len(result.ids)))
        if row.drafts:
            self.journal.verified(row, len(result.ids), len(ids))
            self.running.shrink(seq, seq.num_computed)
        if seq.phase is not Phase.DECODE:
            self.running.start_decode(seq)
            self.journal.changed(seq.request)
            self.admission.unpark(seq)
        if seq.finish is not None:
            self._end(seq, seq.finish)
        elif not self.kv.retains:
            self.running.shrink(seq, 0)
            seq.num_computed = 0
        return SeqOutput(
            key=seq.request,
            choice=seq.choice,
            ids=ids,
            finish=seq.finish,
            stop_token=seq.stop_token,
            logprobs=logprobs,
            prompt_logprobs=tuple(seq.prompt_logprobs) if first and seq.prompt_logprobs else None,
            cached_tokens=seq.num_cached,
            drafted=seq.drafted,
            accepted=seq.accepted,
            preemptions=seq.preemptions,
            first_scheduled=seq.first_scheduled if first else None,
        )

    def _computed(self, seq: Sequence, num_tokens: int) -> None:
        """Record that the KV of the first `num_tokens` tokens is in the cache."""
        self.kv.append(seq.key, seq.tokens[seq.num_computed : num_tokens])
        seq.num_computed = num_tokens

    # --- ends -----------------------------------------------------------------------------------

    def _fail(self, seq: Sequence, code: Code, message: str, limit: float | None = None) -> SeqError:
        """End all choices of a request with an error."""
        for sibling in list(self._requests[seq.request]):
            self._end(sibling, "error")
        return SeqError(key=seq.request, code=code, message=message, limit=limit)

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        """Take a sequence out of service; what the device may still write to is freed at its commit."""
        seq.finish = reason
        if seq.phase is Phase.WAITING:
            self.admission.remove(seq)
        else:
            self.running.take_out(seq)
            self.journal.dropped(seq.key)
        seq.phase = Phase.FINISHED
        self.admission.unpark(seq)
        self._forget(seq)
        if seq.slot >= 0:
            self._leave(seq)

    def _forget(self, seq: Sequence) -> None:
        unfinished = self._requests[seq.request]
        unfinished.remove(seq)
        if not unfinished:
            del self._requests[seq.request]
            self._deadlines.trim(len(self._requests))
        if not self._requests:
            self.admission.queue.shares.clear()

    def _leave(self, seq: Sequence) -> None:
        """Release an ended sequence, unless it is in flight or its static batch goes on."""
        if seq.num_inflight:
            return
        if self._static and len(self.running):
            self.running.held.append(seq)
            return
        self.running.release(seq)
        if self._static:
            self.running.release_held()
