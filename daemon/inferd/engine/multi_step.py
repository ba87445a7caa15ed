"""How many steps of plain decoding a call takes before the host sees their tokens. No torch, no clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.engine.admission import Admission
    from inferd.engine.batch import Plan
    from inferd.engine.pace import Pace
    from inferd.engine.running import Running


class MultiStep:
    """Lets decoding go on without the host while nobody waits for it, for a bounded time.

    What the host does between two steps is a tenth of a short one. Several in one call give the same tokens; what
    comes after the end of a sequence is dropped. Every row must be one that needs no help of the host.
    """

    __slots__ = ("_admission", "_limit_s", "_most", "_pace", "_running")

    def __init__(self, running: Running, admission: Admission, pace: Pace, *, most: int, limit_s: float) -> None:
        """`most` is what the executor takes, `limit_s` how long all steps of a call should take together."""
        self._running = running
        self._admission = admission
        self._pace = pace
        self._most = most
        self._limit_s = limit_s

    def steps_of(self, plan: Plan) -> int:
        """Return how many steps the rows of a plan may take, with the blocks for them allocated."""
        num_seqs = plan.counts.decode
        if self._most < 2 or num_seqs < len(plan.rows) or self._running.prefilling or len(self._admission):
            return 1
        step_s = self._pace.decode_s(num_seqs)
        if not step_s or not plan.may_be_followed:
            return 1
        left = min([row.seq.limit - row.start for row in plan.rows])
        count = min(self._most, left, int(self._limit_s / step_s))
        return self._with_room(plan, count) if count > 1 else 1

    def _with_room(self, plan: Plan, count: int) -> int:
        """Allocate for so many tokens a row; return for how many there is room, without taking others' blocks."""
        for row in plan.rows:
            if row.start + count > row.seq.capacity and not self._running.grow(row.seq, row.start + count):
                return min([count, *[other.seq.capacity - other.start for other in plan.rows]])
        return count
