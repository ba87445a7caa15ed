"""A model's vocabulary as llguidance takes it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from llguidance import LLTokenizer, TokenizerWrapper

if TYPE_CHECKING:
    from inferd.load.vocab import Vocabulary


class _Adapter:
    """What `TokenizerWrapper` reads. It is called for text that a grammar forces, from any thread."""

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        names = {index: special.content.encode() for index, special in vocabulary.specials.items()}
        pieces = [names.get(index, piece) for index, piece in enumerate(vocabulary.pieces)]
        self.tokens = pieces + [b""] * (size - len(pieces))
        self.special_token_ids = sorted(names)
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else None
        self.bos_token_id = vocabulary.bos_id
        self._vocabulary = vocabulary
        self._lock = threading.Lock()

    def __call__(self, text: bytes) -> list[int]:
        with self._lock:
            return self._vocabulary.encode(text.decode())


def make_tokenizer(vocabulary: Vocabulary, size: int) -> LLTokenizer:
    """Return a tokenizer of `size` ids, those past the vocabulary never allowed.

    Special tokens have no text: a grammar means them by name (`<|im_end|>`) or number (`<[7]>`), and text that
    spells one stays text.
    """
    eos = list(vocabulary.eos_ids) or None
    return LLTokenizer(TokenizerWrapper(_Adapter(vocabulary, size)), eos_token=eos)
