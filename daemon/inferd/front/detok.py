"""Token ids to text, a few ids at a time: whole characters only, stop strings found as they complete.

The bytes of the ids are decoded as one UTF-8 stream (special tokens have no text; invalid bytes
become U+FFFD as soon as they are known to be invalid). A delta is never taken back: held are only an
incomplete character and text that may yet turn out to be the head of a stop string.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class Delta(NamedTuple):
    """What a push made certain."""

    text: str
    stop: str | None
    """The stop string that ended the stream; nothing follows it."""
    num_ids_used: int
    """Ids taken, the one that completed the stop string included; the rest is not part of the answer."""


class TextStream:
    """The text of one choice.

    The match that ends first wins, of several that end together the longest: what comes out does
    not depend on how the ids were cut into pushes. Ids past the end of `pieces` have no text.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        special_ids: Collection[int],
        stop: Iterable[str] = (),
        include_stop: bool = False,
        min_ids: int = 0,
    ) -> None:
        """A stop string that is complete within the first `min_ids` ids does not count."""
        self.stop: str | None = None
        """The stop string found, also when only `finish` completed it."""
        self._pieces = pieces
        self._special = special_ids if isinstance(special_ids, (set, frozenset)) else frozenset(special_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop)
        self._include_stop = include_stop
        self._ids_to_ignore = min_ids
        self._held = ""

    def push(self, ids: Sequence[int]) -> Delta:
        """Take the next ids and return the text they make certain."""
        out: list[str] = []
        used = 0
        for token in ids:
            if self.stop is not None:
                break
            used += 1
            ignore, self._ids_to_ignore = self._ids_to_ignore > 0, self._ids_to_ignore - 1
            piece = self._piece(token)
            if piece:
                out.append(self._accept(self._decoder.decode(piece), ignore=ignore))
        return Delta("".join(out), self.stop, used)

    def finish(self) -> str:
        """Return what was held back; the stream is over."""
        if self.stop is not None:
            return ""
        text = self._accept(self._decoder.decode(b"", True), ignore=self._ids_to_ignore >= 0)
        if self.stop is None:
            text, self._held = text + self._held, ""
        return text

    def _piece(self, token: int) -> bytes:
        if token in self._special or not 0 <= token < len(self._pieces):
            return b""
        return self._pieces[token]

    def _accept(self, text: str, *, ignore: bool) -> str:
        """Add decoded text; return what can no longer be part of a stop string."""
        if self._matcher.idle:
            return text
        found = self._matcher.feed(text, ignore=ignore)
        held = self._held + text
        if found is None:
            certain = len(held) - self._matcher.depth
            self._held = held[certain:]
            return held[:certain]
        self.stop, end = found
        self._held = ""
        end += len(held) - len(text)
        return held[:end] if self._include_stop else held[: end - len(self.stop)]


class StopMatcher:
    """Find the first of several strings to complete in a stream of text (Aho and Corasick, 1975).

    A state is the longest suffix of the text that begins one of the strings; `depth` is its length,
    which is exactly the text that has to be held back.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._found: list[str | None] = [None]
        self._state = 0
        for string in strings:
            if string:
                self._add(string)
        self._link()

    @property
    def idle(self) -> bool:
        """True where there is nothing to look for."""
        return len(self._next) == 1

    @property
    def depth(self) -> int:
        return self._depth[self._state]

    def feed(self, text: str, *, ignore: bool = False) -> tuple[str, int] | None:
        """Advance over `text`; return (string, end within text) once one is complete that is not to be ignored."""
        for index, char in enumerate(text):
            state = self._state
            while state and char not in self._next[state]:
                state = self._fail[state]
            self._state = state = self._next[state].get(char, 0)
            found = self._found[state]
            if found is not None and not ignore:
                return found, index + 1
        return None

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][char]
        self._found[state] = string

    def _link(self) -> None:
        """Point each state at the state of its longest proper suffix, in order of depth."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                fallback = self._fail[state]
                while fallback and char not in self._next[fallback]:
                    fallback = self._fail[fallback]
                self._fail[child] = self._next[fallback].get(char, 0)
                if self._found[child] is None:  # a shorter string may end here too; the longest is kept
                    self._found[child] = self._found[self._fail[child]]
                queue.append(child)
