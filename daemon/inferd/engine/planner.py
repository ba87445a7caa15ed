"""Which rows make up the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.engine.batch import Plan, Row
from inferd.engine.request import Phase
from inferd.engine.turns import Turns
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
        """Choose rows within the budget, preempting where blocks run out or a client has none of its share.

        What is in flight cannot be preempted, and who gives way must not depend on that: where somebody would have
        to, a plan `ahead` of steps in flight has no rows.
        """
        newcomer, gave_way = self._newcomer()
        if ahead and (gave_way or not self._grow_all()):
            return Plan([], StepCounts(0, 0, 0), lacks_room=True)
        if newcomer is not None:
            self._make_way(newcomer, gave_way)
        preempted: list[Sequence] = []
        may_admit = not self._static or not (len(self._running) or self._running.held)
        budget = self._shape.token_budget
        hungry = self._running.prefilling or (may_admit and len(self._admission.queue) and self._running.has_slot)
        reserve = max(1, budget // 4) if hungry and budget > 1 else 0
        decode, verify, prefill = self._decode_rows(drafts, budget - reserve, preempted)
        num_decoding = len(decode) + sum(row.num_tokens for row in verify)
        budget -= num_decoding + sum(row.num_tokens for row in prefill)
        self._prompt_rows(prefill, num_decoding, budget, admits=may_admit and not preempted)
        counts = StepCounts(len(decode), len(verify), len(prefill))
        return Plan([*decode, *verify, *prefill], counts, [*gave_way, *preempted])

    def _newcomer(self) -> tuple[Sequence | None, list[Sequence]]:
        """Return who waits first, if nothing of its client runs, and who can give way to it: of those with too much.

        A share is an equal part, over the clients with work, of the slots or of the pool. Without this a client that
        fills all slots with long answers keeps others waiting until one of them ends. It happens once to a sequence.
        """
        queue, running = self._admission.queue, self._running
        if self._static or not len(queue) or not len(running):
            return None, []
        seq = self._admission.first(self._clock())
        if seq is None or seq.made_way or (running.has_slot and seq.wait_reason != "blocks"):
            return None, []
        clients = {other.client for other in running}
        if seq.client in clients:
            return None, []
        victims = self._victims_for(seq, len(clients | queue.clients()))
        return (seq, victims) if victims else (None, [])

    def _victims_for(self, seq: Sequence, num_clients: int) -> list[Sequence]:
        """Return whose slots and blocks a waiting sequence can have; nobody where that is not enough."""
        running, size = self._running, self._shape.block_size
        victims: list[Sequence] = []
        if not running.has_slot:
            share = max(1, self._shape.max_sequences // num_clients)
            victims = running.excess(lambda _: 1, seq.priority, share=share, wanted=1)
            if not victims:
                return []
        wanted = seq.num_tokens + (running.num_growing - self._admission.free_blocks) * size
        if wanted <= sum(victim.capacity for victim in victims):
            return victims
        share = self._shape.num_blocks * size // num_clients
        if seq.num_tokens > share:
            return []
        return running.excess(lambda other: other.capacity, seq.priority, share=share, wanted=wanted)

    def _make_way(self, newcomer: Sequence, victims: list[Sequence]) -> None:
        """Preempt for a sequence, which enters before they are queued again."""
        newcomer.made_way = True
        for victim in victims:
            self._stop(victim, "slots")
        now = self._clock()
        if self._admission.take(newcomer, now, headroom=self._running.num_growing):
            self._enter(newcomer, now)
        for victim in victims:
            self._admission.queue.push(victim, front=True)

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
            self._stop(victim, "blocks")
            self._admission.queue.push(victim, front=True)
            preempted.append(victim)
            if victim is seq:
                return None
        return ()

    def _stop(self, seq: Sequence, why: str) -> None:
        """Preempt a sequence, to be queued again: its tokens stay and are computed again later."""
        self._running.take_out(seq)
        self._running.release(seq)
        seq.phase = Phase.WAITING
        seq.preemptions += 1
        seq.wait_reason = why
        self._journal.num_preemptions += 1
        self._journal.dropped(seq.key)
        self._journal.changed(seq.request)

    def _prompt_rows(self, rows: list[Row], num_decoding: int, budget: int, *, admits: bool) -> None:
        """Give chunks to prompts in their turn, and let waiting ones in whose turn comes while slots and blocks last.

        A step may take longer where that ends the prompt whose turn it is. A static batch needs no budget to enter.
        """
        now = self._clock()
        room = self._pace.prefill_tokens(num_decoding, budget)
        turns = Turns(self._running.prefilling, self._admission.queue.shares, room)
        seq = self._next_prompt(turns, now, admits=admits) if budget > 0 else None
        if seq is not None:
            budget = self._pace.prefill_tokens(num_decoding, budget, seq.num_left)
        while seq is not None:
            count = self._chunk(rows, seq, budget)
            turns.read(seq, count)
            budget -= count
            seq = self._next_prompt(turns, now, admits=admits) if budget > 0 else None
        while admits and self._static and self._next_waiting(now) is not None:
            pass
        if admits and budget <= 0 and len(self._admission.queue):
            self._admission.gate = "budget" if self._running.has_slot else "slots"

    def _next_prompt(self, turns: Turns, now: float, *, admits: bool) -> Sequence | None:
        """Return whose turn it is: of those being read, or of those that wait, who then enters."""
        waiting = self._admission.first(now) if admits and len(self._admission.queue) else None
        if waiting is not None and turns.is_before(waiting, self._admission.queue.level(waiting, now)):
            seq = self._next_waiting(now)
            if seq is not None:
                turns.enter(seq)
                return seq
        return turns.take()

    def _next_waiting(self, now: float) -> Sequence | None:
        """Let the next waiting sequence in; None where none waits, or none can."""
        if not len(self._admission.queue):
            return None
        if not self._running.has_slot:
            self._admission.gate = "slots"
            return None
        seq = self._admission.next(now, headroom=self._running.num_growing)
        if seq is not None:
            self._enter(seq, now)
        return seq

    def _chunk(self, rows: list[Row], seq: Sequence, budget: int) -> int:
        """Add the next prefill chunk of a sequence; return its tokens."""
        start, left = seq.num_computed + seq.num_inflight, seq.num_left
        count = min(left, budget, self._shape.chunk)
        rows.append(Row(seq, start, count, (), count == left))
        return count

    def _enter(self, seq: Sequence, now: float) -> None:
        if seq.first_scheduled is None:
            seq.first_scheduled = now
            seq.num_cached = seq.num_computed
        self._running.enter(seq)
        self._journal.changed(seq.request)
