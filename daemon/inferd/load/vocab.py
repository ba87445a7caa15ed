"""What is to be known of a model's vocabulary: what ids stand for; on the text side tokenizer and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from inferd.load.checkpoint import gguf_in
from inferd.load.errors import LoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES_PATH = "bytes:"
"""Names the built-in vocabulary of one token a byte; no file, no tokenizers."""


class Codec(Protocol):
    """Text to ids. No BOS is added."""

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        """Return the ids of `text`; `special_tokens` lets text that spells a special token become it."""
        ...


class Special(Protocol):
    """How a special token is recognised in text (the flags of `tokenizers.AddedToken`)."""

    @property
    def content(self) -> str: ...
    @property
    def lstrip(self) -> bool: ...
    @property
    def rstrip(self) -> bool: ...
    @property
    def single_word(self) -> bool: ...


class TokenTable(NamedTuple):
    """What ids stand for. Nothing here makes text into ids, which takes most of the memory of a vocabulary."""

    pieces: list[bytes]
    """UTF-8 bytes of each id; empty for special tokens and ids without text."""
    special_ids: tuple[int, ...]
    """Ascending, as are the others."""
    eos_ids: tuple[int, ...]
    """Every id that ends an answer, from all places that name one."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The vocabulary of one model."""

    codec: Codec
    pieces: list[bytes]
    specials: Mapping[int, Special]
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    add_bos: bool = False
    """Raw text starts with BOS. Rendered chats do not get one: their template holds it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What templates see: bos_token, eos_token, pad_token, unk_token."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Chat templates by name; `default` is the one for all purposes."""

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.specials)

    @property
    def table(self) -> TokenTable:
        return TokenTable(self.pieces, tuple(sorted(self.specials)), self.eos_ids)

    @property
    def template(self) -> str | None:
        return self.template_for(tools=False)

    @property
    def tokenizer(self) -> Tokenizer:
        """The `tokenizers` object; absent for `bytes:`."""
        tokenizer: Any = getattr(self.codec, "tokenizer", None)
        if tokenizer is None:
            raise LoadError("the built-in byte vocabulary has no tokenizers object")
        return tokenizer

    def template_for(self, *, tools: bool) -> str | None:
        """Choose among named templates: `tool_use` where there are tools, else `default`."""
        if tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        if "default" not in self.templates and len(self.templates) == 1:
            return next(iter(self.templates.values()))
        return self.templates.get("default")

    def encode(self, text: str, *, special_tokens: bool = False, add_bos: bool = False) -> list[int]:
        """Return the ids of raw text. BOS comes first if asked for and the model wants one, never twice."""
        ids = self.codec.encode(text, special_tokens=special_tokens)
        if add_bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids


def open_vocabulary(path: Path | str) -> Vocabulary:
    """Read the vocabulary of a GGUF file, of a folder as `open_checkpoint` takes it, or `bytes:`. Raises LoadError."""
    if str(path) == BYTES_PATH:
        from inferd.load.vocab_bytes import byte_vocabulary

        return byte_vocabulary()
    path = Path(path)
    if path.is_dir():
        path = gguf_in(path) or path
    if path.is_dir():
        from inferd.load.vocab_hf import hf_vocabulary

        return hf_vocabulary(path)
    if path.is_file():
        from inferd.load.vocab_gguf import gguf_vocabulary

        return gguf_vocabulary(path)
    raise LoadError(f"{path}: no such file or directory")
