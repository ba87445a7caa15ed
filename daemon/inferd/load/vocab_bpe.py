"""Byte-level BPE through the `tokenizers` library: ids of text, and the bytes behind each id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inferd.load.errors import LoadError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


class BpeCodec:
    """A `tokenizers.Tokenizer` as a `Codec`. Not for use by several threads at once.

    A byte for which the vocabulary has no token is dropped, as the model's own tokenizer does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        self.tokenizer.encode_special_tokens = not special_tokens
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)  # fast: without offsets
        return encoding.ids


def byte_alphabet() -> dict[str, int]:
    """Map each stand-in character of byte-level BPE to its byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in ascending order, are
    written as the characters from U+0100 on (the GPT-2 vocabulary files).
    """
    alphabet = {chr(byte): byte for byte in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))}
    others = sorted(set(range(256)) - set(alphabet.values()))
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def stand_ins() -> dict[int, int]:
    """Return the alphabet for `str.translate`, to characters of Latin-1; what is not in it becomes none of those."""
    return dict.fromkeys(range(0x100), 0x100) | {ord(char): byte for char, byte in byte_alphabet().items()}


def token_bytes(token: str, stands_for: Mapping[int, int]) -> bytes:
    """Return the bytes of a vocabulary entry; one not written in the alphabet stands for itself."""
    try:
        return token.translate(stands_for).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")


def piece_table(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> list[bytes]:
    """Return the bytes of every id: nothing for special tokens, the plain text of other added ones."""
    stands_for = stand_ins()
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    if size > 8 * len(vocab) + 65536:
        raise LoadError(f"tokenizer: token id {size - 1} is far beyond its {len(vocab)} tokens")
    pieces = [b""] * size
    for token, index in vocab.items():
        if index not in added:
            pieces[index] = token_bytes(token, stands_for)
    for index, token in added.items():
        pieces[index] = b"" if token.special else token.content.encode()
    return pieces
