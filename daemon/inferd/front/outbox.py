"""What could not be sent to a client yet: bounded, and output of one choice is merged while it waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferd_client.protocol import Reply, Tokens

if TYPE_CHECKING:
    from inferd_client.protocol import FinishReason, TokenLogprob


MESSAGE_BYTES = 64
"""Of a `tokens` message besides its content."""


@dataclass(slots=True)
class Piece:
    """Output of one choice that has not got its sequence number yet."""

    choice: int
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    spelling: dict[int, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its content, roughly."""
        logprobs = sum(16 + 12 * len(p.top) for part in (self.logprobs, self.prompt_logprobs) for p in part or () if p)
        return len(self.text) + 4 * len(self.ids) + logprobs + 10 * len(self.spelling)

    def merge(self, later: Piece) -> None:
        """Append what came after."""
        self.text += later.text
        self.ids += later.ids
        self.finish = later.finish or self.finish
        self.spelling |= later.spelling
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or ()) + later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or ()) + later.prompt_logprobs

    def numbered(self, request_id: str, seq: int) -> Tokens:
        return Tokens(
            id=request_id,
            seq=seq,
            choice=self.choice,
            text=self.text,
            ids=self.ids,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            finish=self.finish,
            spelling=self.spelling,
        )


@dataclass(slots=True)
class Stream:
    """The numbering of one request's output."""

    request_id: str
    seq: int = 0

    def next(self, piece: Piece) -> Tokens:
        tokens = piece.numbered(self.request_id, self.seq)
        self.seq += 1
        return tokens


@dataclass(slots=True)
class _Waiting:
    """One entry of the queue: a ready reply, or output that may still grow."""

    size: int
    reply: Reply | None = None
    stream: Stream | None = None
    piece: Piece | None = None

    def message(self) -> Reply:
        if self.reply is not None:
            return self.reply
        assert self.stream is not None
        assert self.piece is not None
        return self.stream.next(self.piece)


class Outbox:
    """Unsent messages of one client, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[_Waiting] = deque()
        self._growing: dict[tuple[int, int], _Waiting] = {}
        self.output_bytes = 0
        """Of generated output; what a slow client is judged by."""

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, reply: Reply) -> None:
        self._queue.append(_Waiting(0, reply=reply))

    def put_piece(self, stream: Stream, piece: Piece) -> None:
        """Queue output, or add it to what already waits of the same choice."""
        waiting = self._growing.get((id(stream), piece.choice))
        if waiting is not None and waiting.piece is not None:
            waiting.size += piece.size
            self.output_bytes += piece.size
            waiting.piece.merge(piece)
            return
        waiting = _Waiting(MESSAGE_BYTES + piece.size, stream=stream, piece=piece)
        self.output_bytes += waiting.size
        self._growing[id(stream), piece.choice] = waiting
        self._queue.append(waiting)

    def drop(self, stream: Stream) -> None:
        """Forget the unsent output of one request."""
        self._queue = deque(waiting for waiting in self._queue if waiting.stream is not stream)
        self._growing = {key: w for key, w in self._growing.items() if w.stream is not stream}
        self.output_bytes = sum(waiting.size for waiting in self._queue)

    def clear(self) -> None:
        self._queue.clear()
        self._growing.clear()
        self.output_bytes = 0

    def flush(self, send: Callable[[Reply], bool]) -> bool:
        """Send from the front of the queue until it is empty (True) or `send` says no (False)."""
        while self._queue:
            waiting = self._queue[0]
            seq = waiting.stream.seq if waiting.stream else 0
            if not send(waiting.message()):
                if waiting.stream:
                    waiting.stream.seq = seq  # not sent: the number is still free
                return False
            self._queue.popleft()
            self.output_bytes -= waiting.size
            if waiting.stream is not None and waiting.piece is not None:
                del self._growing[id(waiting.stream), waiting.piece.choice]
        return True
