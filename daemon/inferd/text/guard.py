"""Keep text that merely spells a special token from becoming one in a rendered chat.

A template writes special tokens itself, between texts that come from users, files and web pages.
Were the rendered chat tokenized as it is, a user who writes `<|im_end|>` would end his turn and could
speak as the system. So each string given to a template gets an invisible mark

 - behind the first character of everything in it that spells a special token, and
 - at its end, where it ends with the head of one (what follows could complete it).

The mark is a character that occurs nowhere in the input. It survives concatenation, trimming and
splitting, so wherever the text ends up, the tokens the template wrote are recognised in the marked
text and those of the user are not. Then the marks are taken out and each stretch between special
tokens is tokenized as plain text in one piece: BPE sees what it would have seen without marks. A chat
without marks (nearly every one) is tokenized as it is.

Not covered: a template that deletes characters from within a user's text, and added tokens the
vocabulary does not call special (`<think>`, `<tool_call>`), which users may write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inferd.text.errors import TextError

if TYPE_CHECKING:
    from inferd.load.vocab import Vocabulary

MARKS = (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF4000))
"""Candidates: code points that Unicode keeps for internal use, then private ones."""


class Guard:
    """Marks for the special tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._by_text = {token.content: (index, token) for index, token in vocabulary.specials.items() if token.content}
        longest_first = sorted(self._by_text, key=len, reverse=True)
        self._alternatives = "|".join(re.escape(text) for text in longest_first)

    def mark_for(self, *values: Any) -> str:
        """Choose a character that occurs in none of the values. Raises TextError."""
        used: set[str] = set()
        for text in _strings(values):
            used.update(text)
        for code in MARKS:
            if chr(code) not in used:
                return chr(code)
        raise TextError("the messages use every private character", "messages")

    def protect(self, value: Any, mark: str) -> Any:
        """Return the value with all strings in it marked."""
        if isinstance(value, str):
            return self._protect_text(value, mark)
        if isinstance(value, Mapping):
            return {self.protect(k, mark): self.protect(v, mark) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item, mark) for item in value]
        return value

    def encode(self, marked: str, mark: str) -> list[int]:
        """Return the ids of a rendered chat: special tokens only where no mark denies them."""
        if mark not in marked:
            return self._vocabulary.encode(marked, special_tokens=True)
        ids: list[int] = []
        position = 0
        for match in re.finditer(f"({self._alternatives})(?!{mark})", marked):
            index, token = self._by_text[match[1]]
            start, end = match.span()
            if start < position or (token.single_word and _inside_word(marked, start, end)):
                continue
            while token.lstrip and start > position and marked[start - 1].isspace():
                start -= 1
            while token.rstrip and end < len(marked) and marked[end].isspace():
                end += 1
            ids += self._plain(marked[position:start], mark)
            ids.append(index)
            position = end
        return ids + self._plain(marked[position:], mark)

    def _plain(self, text: str, mark: str) -> list[int]:
        text = text.replace(mark, "")
        return self._vocabulary.encode(text, special_tokens=False) if text else []

    def _protect_text(self, text: str, mark: str) -> str:
        if not self._by_text:
            return text
        ends_with_head = any(text[-n:] in self._heads for n in range(1, min(len(text), self._longest) + 1))
        return self._starts.sub(rf"\g<0>{mark}", text) + mark * ends_with_head

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        """The first character of every spelled special token, overlapping ones too."""
        return re.compile(f"(?={self._alternatives}).", re.DOTALL)

    @cached_property
    def _heads(self) -> frozenset[str]:
        return frozenset(text[:n] for text in self._by_text for n in range(1, len(text)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_text), default=0)


def _inside_word(text: str, start: int, end: int) -> bool:
    return any(re.fullmatch(r"\w", char) for char in (text[max(start - 1, 0) : start], text[end : end + 1]))


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _strings(value.keys())
            yield from _strings(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _strings(value)
