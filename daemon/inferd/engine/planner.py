"""Which rows make up the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.engine.batch import Plan, Row
from inferd.engine.request import Phase
from inferd.plugin.types import StepCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.engine.admission import Admission
    from inferd.engine.journal import Journal
    from inferd.engine.pace import Pace
    from inferd.engine.request import Sequence
    from inferd.engine.running import Running
    from inferd.engine.shape import EngineShape

Drafts = dict[int, list[int]]
"""Proposed tokens by sequence key."""


class Planner:
    """Spends one token budget: decodes and verifications, prefill chunks, then admission."""

    __slots__ = ("_admission", "_clock", "_journal", "_max_draft", "_pace", "_running", "_shape", "_static")

    def __init__(
        self,
        shape: EngineShape,
        running: Running,
        admission: Admission,
        journal: Journal,
        pace: Pace,
        *,
        max_draft: int,
        static: bool,
        clock: Callable[[], float],
    ) -> None:
        self._shape = shape
        self._running = running
        self._admission = admission
        self._journal = journal
        self._pace = pace
        self._max_draft = max_draft
        self._static = static
        self._clock = clock

    def plan(self, drafts: Drafts, *, ahead: bool = False) -> Plan:
        """Choose rows within the budget, preempting where blocks run out; `ahead` of steps in flight choose none then.

        What is in flight cannot be preempted, and who gives way must not depend on that.
        """
        preempted: list[Sequence] = []
        if ahead and not self._grow_all():
            return Plan([], StepCounts(0, 0, 0))
        may_admit = not self._static or not (len(self._running) or self._running.held)
        budget = self._shape.token_budget
        hungry = self._running.prefilling or (may_admit and len(self._admission.queue) and self._running.has_slot)
        reserve = max(1, budget // 4) if hungry and budget > 1 else 0
        decode, verify, prefill = self._decode_rows(drafts, budget - reserve, preempted)
        num_decoding = len(decode) + sum(row.num_tokens for row in verify)
        budget -= num_decoding + sum(row.num_tokens for row in prefill)
        budget = self._pace.prefill_tokens(num_decoding, budget)
        budget -= self._prefill_rows(prefill, budget)
        if may_admit and not preempted:
            self._admit(prefill, budget)
        counts = StepCounts(len(decode), len(verify), len(prefill))
        return Plan([*decode, *verify, *prefill], counts, preempted)

    def _decode_rows(
        self, drafts: Drafts, budget: int, preempted: list[Sequence]
    ) -> tuple[list[Row], list[Row], list[Row]]:
        """Give every decoding sequence its token, then drafts from what is left.

        Without KV reuse a sequence's row is its whole length, in chunks like a prefill.
        """
        decode: list[Row] = []
        verify: list[Row] = []
        chunks: list[Row] = []
        decoding = self._decoding()
        spare = budget - len(decoding)
        for index, seq in enumerate(decoding):
            if budget <= 0:
                self._serve_first(decoding[index:])
                break
            start = seq.num_computed + seq.num_inflight
            count = seq.num_coming - start
            if count <= 0 or seq.num_coming > seq.limit:
                continue
            guess = self._usable(seq, drafts, spare) if drafts else ()
            need = seq.num_coming + len(guess)
            if need > seq.capacity:
                guess = self._make_room(seq, guess, preempted)
                if guess is None:
                    continue
            if guess:
                spare -= len(guess)
                verify.append(Row(seq, start, count + len(guess), guess))
                budget -= count + len(guess)
            elif count == 1:
                decode.append(Row(seq, start, 1))
                budget -= 1
            else:
                taken = min(count, budget, self._shape.chunk)
                chunks.append(Row(seq, start, taken, (), taken == count))
                budget -= taken
        if preempted:
            decode, verify, chunks = ([r for r in rows if r.seq.tables] for rows in (decode, verify, chunks))
        return decode, verify, chunks

    def _decoding(self) -> list[Sequence]:
        """Return the sequences whose next token extends their output, or will once the steps in flight are done."""
        return [*self._running.decoding, *[seq for seq in self._running.prefilling if seq.num_sampling]]

    def _grow_all(self) -> bool:
        """Make room for the next token of all that decode; False when that would take another one's blocks."""
        return all(
            self._running.grow(seq, seq.num_coming)
            for seq in self._decoding()
            if seq.capacity < seq.num_coming <= seq.limit
        )

    def _serve_first(self, unserved: list[Sequence]) -> None:
        """Let those that the budget left out be first in the next step."""
        left_out = {seq.key for seq in unserved}
        self._running.decoding.sort(key=lambda seq: seq.key not in left_out)

    def _usable(self, seq: Sequence, drafts: Drafts, spare: int) -> tuple[int, ...]:
        """Cut a proposal to what the budget, the request, its grammar and the attention backend take."""
        guess = drafts.get(seq.key)
        if not guess or seq.num_uncomputed != 1:
            return ()
        guess = guess[: max(0, min(spare, self._max_draft, seq.limit - len(seq.tokens)))]
        if guess and seq.matcher is not None:
            guess = guess[: seq.matcher.allowed(guess)]
        return tuple(guess)

    def _make_room(self, seq: Sequence, guess: tuple[int, ...], preempted: list[Sequence]) -> tuple[int, ...] | None:
        """Allocate for a row: first without its drafts, then at the cost of others. None = it gives way."""
        if seq.tables is None:
            return None
        if self._running.grow(seq, seq.num_coming + len(guess)):
            return guess
        while not self._running.grow(seq, seq.num_coming):
            if self._running.release_held():
                continue
            victim = self._running.victim()
            if victim is None:
                return None
            self._preempt(victim)
            preempted.append(victim)
            if victim is seq:
                return None
        return ()

    def _preempt(self, seq: Sequence) -> None:
        """Send a sequence back to the queue; its tokens stay and are computed again later."""
        self._running.take_out(seq)
        self._running.release(seq)
        seq.phase = Phase.WAITING
        seq.preemptions += 1
        seq.wait_reason = "blocks"
        self._journal.num_preemptions += 1
        self._journal.dropped(seq.key)
        self._journal.changed(seq.request)
        self._admission.queue.push(seq, front=True)

    def _prefill_rows(self, rows: list[Row], budget: int) -> int:
        """Give chunks to prefilling sequences, the first one most; return the tokens used."""
        used = 0
        for index, seq in enumerate(self._running.prefilling):
            if used >= budget:
                break
            others = index + 1 < len(self._running.prefilling) or len(self._admission.queue) > 0
            used += self._chunk(rows, seq, budget - used, share=not index and others)
        return used

    def _chunk(self, rows: list[Row], seq: Sequence, budget: int, *, share: bool) -> int:
        """Add the next prefill chunk of a sequence; return its tokens.

        `share`: a long prompt leaves a quarter of the budget to those behind it.
        """
        start = seq.num_computed + seq.num_inflight
        left = len(seq.tokens) - start
        if left <= 0:
            return 0
        if share and left > budget:
            budget -= budget // 4
        count = min(left, budget, self._shape.chunk)
        rows.append(Row(seq, start, count, (), count == left))
        return count

    def _admit(self, rows: list[Row], budget: int) -> None:
        """Let waiting sequences in while slots, blocks and budget last; a static batch needs no budget."""
        if not len(self._admission.queue):
            return
        now = self._clock()
        while True:
            if not self._running.has_slot:
                self._admission.gate = "slots"
                return
            if budget <= 0 and not self._static:
                self._admission.gate = "budget"
                return
            seq = self._admission.next(now, headroom=self._running.num_growing)
            if seq is None:
                return
            self._enter(seq, now)
            if budget > 0:
                budget -= self._chunk(rows, seq, budget, share=len(self._admission.queue) > 0)

    def _enter(self, seq: Sequence, now: float) -> None:
        if seq.first_scheduled is None:
            seq.first_scheduled = now
            seq.num_cached = seq.num_computed
        self._running.enter(seq)
        self._journal.changed(seq.request)
