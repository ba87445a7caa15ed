"""Which requests may enter at all, and which waiting sequence enters next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.engine.fairness import WaitingQueue
from inferd.link import SeqError
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferd.engine.request import Sequence
    from inferd.engine.shape import EngineShape
    from inferd.link import Submit
    from inferd.plugin.contracts import KVManager


def resolve_max_tokens(submit: Submit, shape: EngineShape) -> int | SeqError:
    """Return the output limit of a request, or why the engine can never run it, with the numbers.

    The last sampled token needs no KV, so a pool serves one token more than it holds.
    """
    prompt = len(submit.prompt)
    if not prompt:
        return SeqError(key=submit.key, code=Code.INVALID_PARAM, message="the prompt is empty", field="prompt")
    pool = shape.num_blocks * shape.block_size + 1
    room = min(shape.max_context, pool) - prompt
    wanted = submit.sampling.max_tokens
    if wanted is None and room >= 1:
        return room
    if wanted is not None and wanted <= room:
        return wanted
    bound = f"the context of {shape.max_context} tokens"
    if pool < shape.max_context:
        bound = f"the KV pool of {shape.num_blocks} blocks of {shape.block_size} tokens"
    asked = f"{prompt} prompt tokens" if room < 1 else f"{prompt} prompt tokens + max_tokens {wanted}"
    return SeqError(
        key=submit.key,
        code=Code.CONTEXT_EXCEEDED,
        message=f"{asked} exceed {bound}",
        field="prompt" if room < 1 else "max_tokens",
        limit=float(prompt + room),
    )


class Admission:
    """Waiting sequences, and the search for one that fits.

    A sequence may be passed by shorter ones of its client, and one that does not fit by any that does: at most
    `skip_ahead` places behind it and at most `skip_ahead` times; then everything waits for it.
    """

    __slots__ = ("_blocked", "_held", "_kv", "_parked", "_skip_ahead", "gate", "queue")

    def __init__(self, kv: KVManager, *, skip_ahead: int, ageing_s: float) -> None:
        self._kv = kv
        self._skip_ahead = skip_ahead
        self._parked: dict[int, list[Sequence]] = {}
        self._held: dict[str, list[Sequence]] = {}
        self._blocked = (-1, 0)
        """Queue version and room of the last search in vain: no use in another until either is better."""
        self.queue = WaitingQueue(ageing_s=ageing_s, skip_ahead=skip_ahead)
        self.gate = ""
        """Why sequences wait that were not even tried in the last step."""

    def __len__(self) -> int:
        return len(self.queue) + sum(map(len, self._parked.values())) + self.num_held

    @property
    def num_held(self) -> int:
        """Sequences that may not run yet, whatever is free."""
        return sum(map(len, self._held.values()))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.queue
        for waiting in (*self._parked.values(), *self._held.values()):
            yield from waiting

    def hold(self, seqs: list[Sequence], reason: str) -> None:
        """Keep the sequences of one request out of the queue until `unhold`."""
        for seq in seqs:
            seq.wait_reason = reason
        self._held[seqs[0].request] = list(seqs)

    def unhold(self, request: str) -> list[Sequence]:
        """Give up those that are held of a request."""
        seqs = self._held.pop(request, [])
        for seq in seqs:
            seq.wait_reason = ""
        return seqs

    def park(self, seq: Sequence, leader: Sequence) -> None:
        """Hold a sequence until its leader has computed the prompt they share."""
        seq.wait_reason = "sibling"
        self._parked.setdefault(leader.key, []).append(seq)

    def unpark(self, leader: Sequence) -> None:
        """Let the siblings of a leader queue up, before younger requests of their client."""
        for seq in reversed(self._parked.pop(leader.key, ())):
            seq.wait_reason = ""
            self.queue.push(seq, front=True)

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that ends while it waits."""
        held = self._held.get(seq.request)
        if held is not None:
            held.remove(seq)
            if not held:
                del self._held[seq.request]
            return
        siblings = self._parked.get(seq.leader.key) if seq.leader else None
        if self.queue.remove(seq) or not siblings or seq not in siblings:
            return
        siblings.remove(seq)
        if not siblings:
            del self._parked[seq.leader.key]  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def free_blocks(self) -> int:
        return self._kv.stats().free_blocks

    def first(self, now: float) -> Sequence | None:
        """Return the waiting sequence whose turn it is; it stays."""
        return next(self.queue.order(now), None)

    def next(self, now: float, *, headroom: int) -> Sequence | None:
        """Take out the next sequence that fits, with its blocks allocated; None sets `gate`.

        `headroom` blocks are left free for the growth of what runs.
        """
        state = (self.queue.version, self.free_blocks - headroom)
        self.gate = "priority"
        if state[0] == self._blocked[0] and state[1] <= self._blocked[1]:
            return None
        passed: list[Sequence] = []
        for seq in self.queue.order(now):
            oldest = self.queue.oldest(seq)
            if self.take(seq, now, headroom=headroom):
                for other in passed if oldest is seq or oldest in passed else (oldest, *passed):
                    other.skips += 1
                return seq
            seq.wait_reason = "blocks"
            passed.append(seq)
            if len(passed) > self._skip_ahead or seq.skips >= self._skip_ahead:
                break
        self._blocked = state
        return None

    def take(self, seq: Sequence, now: float, *, headroom: int) -> bool:
        """Take out one sequence, with its blocks allocated, if it fits."""
        if not self._fits(seq, headroom):
            return False
        self.queue.admit(seq, now)
        seq.wait_reason = ""
        return True

    def _fits(self, seq: Sequence, headroom: int) -> bool:
        """Attach the cached prefix and allocate the rest of what is known of the sequence."""
        seq.num_computed = self._kv.match(seq.key, () if seq.needs_prompt_rows else seq.tokens)
        tables = self._kv.allocate(seq.key, seq.num_tokens, limit=seq.limit)
        if tables is not None and self.free_blocks >= headroom:
            seq.tables = tables
            return True
        self._kv.free(seq.key)
        seq.num_computed = 0
        return False
