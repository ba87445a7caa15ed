"""The engine of one loaded model: requests in, one report a step out."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

from inferd.engine.admission import resolve_max_tokens
from inferd.engine.demand import Demand
from inferd.engine.executor import loses_device
from inferd.engine.report import Work, seq_states, step_stats
from inferd.engine.request import Sequence
from inferd.link import SeqError, StepReport
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inferd.engine.batch import Plan
    from inferd.engine.builder import BatchBuilder
    from inferd.engine.executor import Executor
    from inferd.engine.grammars import Grammars
    from inferd.engine.scheduler import Drafts, Scheduler
    from inferd.link import Ceilings, DeviceUse, Overlap, SeqOutput, SeqState, Submit
    from inferd.plugin.contracts import DraftModel

STATES_EVERY_S = 1.0
MAX_SEED = 2**63 - 1


class Engine:
    """Drives scheduler, executor and drafter. Not thread-safe: one loop owns it.

    A draft plugin that raises is switched off and named in the report's warnings: speculation is a
    lever, not a duty. What the executor raises passes through and ends the worker, and so does a lost device.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        drafter: DraftModel | None,
        builder: BatchBuilder,
        *,
        clock: Callable[[], float] = time.monotonic,
        vocab_size: int | None = None,
        grammars: Grammars | None = None,
        demand: Demand | None = None,
        background: Iterator[Ceilings | None] = iter(()),
    ) -> None:
        """`background` is work in short slices for idle times; what it yields but None is news."""
        self.scheduler = scheduler
        self.executor = executor
        self.drafter = drafter if drafter is not None and drafter.active else None
        assert executor.depth == 1 or (self.drafter is None and scheduler.kv.retains), "see `choose_depth`"
        self.builder = builder
        self._clock = clock
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._demand = demand or Demand()
        self._background = background
        self._in_flight: deque[Plan] = deque()
        self._may_follow = False
        """The next step may be planned before the outcome of the one submitted last is known."""
        self._lacks_room = False
        """The last plan was given up until the steps in flight are done."""
        self._errors: list[SeqError] = []
        self._warnings: list[str] = []
        self._next_key = 0
        self._states_due = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._errors)

    def submit(self, submit: Submit) -> None:
        """Queue a request; one that can never run is answered in the next report."""
        max_tokens = resolve_max_tokens(submit, self.scheduler.shape)
        if isinstance(max_tokens, SeqError):
            self._errors.append(max_tokens)
            return
        seqs = self._expand(submit, max_tokens)
        if submit.grammar is None:
            self.scheduler.add(seqs)
        elif self._grammars is None:
            text = "this engine follows no grammars"
            self._errors.append(SeqError(key=submit.key, code=Code.GRAMMAR_INVALID, message=text))
        else:
            self.scheduler.add(seqs, hold="grammar")
            self._grammars.begin(seqs, submit.grammar)

    def abort(self, key: str, choice: int | None = None) -> None:
        """End a request, or one choice of it; nothing more is reported of it."""
        self._errors = [error for error in self._errors if error.key != key]
        self.scheduler.abort(key, choice)
        self._tell_drafter()

    def step(self) -> StepReport:
        """Run one step: the loop of the engine."""
        errors, self._errors = self._errors + self.scheduler.expire(self._clock()) + self._release_compiled(), []
        outputs: list[SeqOutput] = []
        work = Work(self._demand)
        submitted = self._submit_next()
        if self._in_flight and not (submitted and self._may_plan):
            oldest = self._in_flight.popleft()
            out = self.executor.collect()
            accepted = self.scheduler.journal.num_accepted
            work.overlap = self._overlap
            outputs, failed = self.scheduler.commit(oldest, out)
            work.add(oldest, outputs, out.elapsed_s, self.scheduler.journal.num_accepted - accepted, out.num_steps)
            errors += failed
        self._tell_drafter()
        now = self._clock()
        warnings, self._warnings = tuple(self._warnings), []
        return StepReport(
            outputs=outputs,
            errors=errors,
            states=self._states(now),
            stats=step_stats(self.scheduler, work, now),
            warnings=warnings,
            charges=work.charges,
        )

    @property
    def _may_plan(self) -> bool:
        """True when a step may be planned now: what is in flight need not be known for it, and one more has room."""
        flying = self._in_flight
        return not flying or (self._may_follow and len(flying) < self.executor.depth)

    @property
    def _overlap(self) -> Overlap:
        """Whether another step was started before the outcome of the oldest was asked for, and if not, why."""
        if self.executor.depth == 1:
            return "off"
        if self._in_flight:
            return "yes"
        if not self._may_follow:
            return "host"
        return "room" if self._lacks_room else "idle"

    def _submit_next(self) -> bool:
        """Plan a step and start it; False when there is none, or none yet."""
        if not self._may_plan:
            return False
        plan = self.scheduler.schedule(self._drafts())
        self._lacks_room = plan.lacks_room
        if plan.rows:
            self._may_follow = self.executor.depth > 1 and plan.may_be_followed
            self.executor.submit(self.builder.build(plan))
            self.scheduler.advance(plan)
            self._in_flight.append(plan)
        return bool(plan.rows)

    def watch(self, file: int) -> None:
        """Come back from a call of several steps early where this file can be read from."""
        self.executor.watch(file)

    def idle(self) -> Ceilings | None:
        """Do a short slice of what can wait; called while there is nothing else."""
        return next(self._background, None)

    def use(self) -> DeviceUse:
        """Tell what is known of the device."""
        return self.executor.use()

    def close(self) -> None:
        """Release the device and end the ranks."""
        self.executor.close()
        if self._grammars is not None:
            self._grammars.close()

    def _release_compiled(self) -> list[SeqError]:
        """Queue the requests whose grammar is ready, fail those that have none."""
        if self._grammars is None:
            return []
        if self.scheduler.all_held:
            self._grammars.pause()
        errors: list[SeqError] = []
        for request, error in self._grammars.settled():
            if request not in self.scheduler.requests:
                continue  # it ended meanwhile
            if error:
                errors.append(self.scheduler.fail(request, Code.GRAMMAR_INVALID, error))
            else:
                self.scheduler.release(request)
        return errors

    def _expand(self, submit: Submit, max_tokens: int) -> list[Sequence]:
        """Make one sequence per choice; choice i samples with seed + i."""
        sampling = submit.sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        eos_ids = frozenset(submit.eos_ids)
        stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
        seqs: list[Sequence] = []
        for choice in range(sampling.n):
            seqs.append(
                Sequence(
                    key=self._next_key + choice,
                    request=submit.key,
                    choice=choice,
                    client=submit.client,
                    tokens=list(submit.prompt),
                    num_prompt=len(submit.prompt),
                    sampling=sampling,
                    seed=(seed + choice) & MAX_SEED,
                    max_tokens=max_tokens,
                    eos_ids=eos_ids,
                    stop_ids=stop_ids,
                    bad_word_ids=submit.bad_word_ids,
                    priority=submit.priority,
                    arrival=submit.arrival,
                    deadline=submit.deadline,
                    queue_deadline=submit.queue_deadline,
                    leader=seqs[0] if seqs else None,
                )
            )
        self._next_key += sampling.n
        return seqs

    def _drafts(self) -> Drafts:
        """Ask the drafter for as many tokens as the budget could verify."""
        if self.drafter is None or not (decoding := self.scheduler.decoding()):
            return {}
        k = min(self.scheduler.max_draft, self.scheduler.shape.token_budget // len(decoding) - 1)
        if k <= 0:
            return {}
        try:
            proposals = self.drafter.propose(decoding, k)
            return {seq.key: self._checked(ids) for seq, ids in zip(decoding, proposals, strict=True) if ids}
        except Exception as error:  # noqa: BLE001 - a third party's plugin may raise anything
            self._disable_drafter(error)
            return {}

    def _checked(self, ids: list[int]) -> list[int]:
        """Return a proposal whose ids the model can embed. Raises ValueError."""
        if min(ids) < 0 or (self._vocab_size is not None and max(ids) >= self._vocab_size):
            raise ValueError(f"proposed ids {ids} are not all within the vocabulary")
        return ids

    def _tell_drafter(self) -> None:
        """Pass on outcomes and the sequences that stopped running."""
        journal = self.scheduler.journal
        dropped, outcomes = journal.take_dropped(), journal.take_outcomes()
        if self.drafter is None:
            return
        try:
            if outcomes:
                self.drafter.observe(outcomes)
            for key in dropped:
                self.drafter.drop(key)
        except Exception as error:  # noqa: BLE001 - a third party's plugin may raise anything
            self._disable_drafter(error)

    def _disable_drafter(self, error: Exception) -> None:
        if loses_device(error):
            raise error
        name = type(self.drafter).__name__
        self._warnings.append(f"plugin_failed: draft model {name} is switched off: {type(error).__name__}: {error}")
        self.drafter = None

    def _states(self, now: float) -> list[SeqState]:
        """Tell of changed requests, and about once a second of all."""
        changed = self.scheduler.journal.take_changed()
        if now >= self._states_due:
            self._states_due = now + STATES_EVERY_S
            return seq_states(self.scheduler, self.scheduler.requests)
        return seq_states(self.scheduler, changed) if changed else []
