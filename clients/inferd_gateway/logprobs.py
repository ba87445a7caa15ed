"""Log-probabilities in the two forms of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferd_client.protocol import TokenLogprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks."""


def chat_logprobs(entries: Sequence[TokenLogprob], spelling: Mapping[int, bytes]) -> list[dict[str, Any]]:
    """Return the `content` list of a chat's logprobs."""
    return [
        _token(entry.token, entry.logprob, spelling)
        | {"top_logprobs": [_token(token, logprob, spelling) for token, logprob in entry.top]}
        for entry in entries
    ]


def _token(token: int, logprob: float, spelling: Mapping[int, bytes]) -> dict[str, Any]:
    raw = spelling.get(token, b"")
    return {"token": raw.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}


class CompletionLogprobs:
    """The parallel lists of a completion's logprobs, of one choice, piece by piece."""

    def __init__(self) -> None:
        self._offset = 0

    def take(self, entries: Sequence[TokenLogprob], spelling: Mapping[int, bytes]) -> dict[str, list[Any]]:
        """Return the lists for the next tokens."""
        tokens, offsets = [], []
        for entry in entries:
            tokens.append(spelled(spelling.get(entry.token, b"")))
            offsets.append(self._offset)
            self._offset += len(spelling.get(entry.token, b"").decode(errors="ignore"))
        return {
            "tokens": tokens,
            "token_logprobs": [max(entry.logprob, LOWEST) for entry in entries],
            "top_logprobs": [_top(entry, spelling) for entry in entries],
            "text_offset": offsets,
        }


def _top(entry: TokenLogprob, spelling: Mapping[int, bytes]) -> dict[str, float]:
    """The most likely tokens, and the sampled one beside them."""
    both = (*entry.top, (entry.token, entry.logprob))
    return {spelled(spelling.get(token, b"")): max(logprob, LOWEST) for token, logprob in reversed(both)}


def spelled(raw: bytes) -> str:
    """Return the text of a token; of a part of a character its bytes, as OpenAI writes them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
