"""The vocabulary inside a GGUF file: `tokenizer.ggml.*` metadata made into a `tokenizers` object, or a mere table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferd.load.errors import LoadError
from inferd.load.vocab import TokenTable, Vocabulary
from inferd.load.vocab_bpe import BpeCodec, stand_ins, token_bytes
from inferd.load.vocab_pre import Pre, find_pre, pre_tokenizer
from inferd.load.vocab_templates import gguf_templates

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = "tokenizer.ggml."
END_FIELDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""End of text, of turn and of message: each ends an answer."""
NAME_FIELDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type` (the GGUF specification)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_vocabulary(path: Path) -> Vocabulary:
    """Read a GGUF file. Raises LoadError."""
    from inferd.load.gguf import GgufFile

    return vocabulary_from(GgufFile(path).metadata, path)


def vocabulary_from(metadata: Mapping[str, object], path: Path) -> Vocabulary:
    """Build the vocabulary from the metadata of a file; `path` is for messages."""
    fields = _Fields(metadata, path)
    tokens, added, pre = _read(fields)
    table = _table(tokens, added, fields)
    tokenizer = _build(tokens, added, fields, pre)
    bos_id = fields.token("bos_token_id", len(tokens))
    specials = {index: token for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        codec=BpeCodec(tokenizer),
        pieces=table.pieces,
        specials=specials,
        eos_ids=table.eos_ids,
        bos_id=bos_id,
        add_bos=bos_id is not None and fields.flag("add_bos_token", pre.add_bos),
        names={
            name: tokens[index]
            for name, field in NAME_FIELDS.items()
            if (index := fields.token(field, len(tokens))) is not None
        },
        templates=gguf_templates(metadata, path),
    )


def table_from(metadata: Mapping[str, object], path: Path) -> TokenTable:
    """Read what ids stand for, without `tokenizers`; `path` is for messages. Raises LoadError."""
    fields = _Fields(metadata, path)
    tokens, added, _ = _read(fields)
    return _table(tokens, added, fields)


def _read(fields: _Fields) -> tuple[list[str], dict[int, bool], Pre]:
    """Return all tokens; which of them are matched whole in text, and whether they are special; how text is cut."""
    model = fields.text("model")
    if model != "gpt2":
        raise LoadError(f"{fields.path}: {PREFIX}model: {model!r}: only byte-level BPE (gpt2) is supported")
    pre = find_pre(fields.text("pre") or "default", fields.path)
    tokens = fields.strings("tokens")
    if (distinct := len(set(tokens))) != len(tokens):
        raise LoadError(f"{fields.path}: {PREFIX}tokens: {len(tokens) - distinct} tokens occur twice")
    types = fields.array("token_type") if fields.has("token_type") else [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise LoadError(f"{fields.path}: {PREFIX}token_type: {len(types)} entries for {len(tokens)} tokens")
    whole = (TokenType.CONTROL, TokenType.USER_DEFINED)
    added = {
        index: kind == TokenType.CONTROL
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in whole and token
    }
    return tokens, added, pre


def _table(tokens: list[str], added: Mapping[int, bool], fields: _Fields) -> TokenTable:
    stands_for = stand_ins()
    pieces = [token_bytes(token, stands_for) for token in tokens]
    for index, special in added.items():
        pieces[index] = b"" if special else tokens[index].encode()
    ends = {index for field in END_FIELDS if (index := fields.token(field, len(tokens))) is not None}
    special_ids = tuple(index for index, special in added.items() if special)
    return TokenTable(pieces, special_ids, tuple(sorted(ends)))


def _build(tokens: list[str], added: Mapping[int, bool], fields: _Fields, pre: Pre) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE
    from tokenizers.normalizers import NFC

    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(BPE(vocab, _merges(fields), ignore_merges=pre.ignore_merges))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise LoadError(f"{fields.path}: {PREFIX}merges: {error}") from None
    if pre.nfc:
        tokenizer.normalizer = NFC()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizer(pre)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_tokens(
        [AddedToken(tokens[index], normalized=False, special=special) for index, special in added.items()]
    )
    return tokenizer


def _merges(fields: _Fields) -> list[tuple[str, str]]:
    """Split each merge at its space; the byte alphabet has no space of its own."""
    pairs: list[tuple[str, str]] = []
    for merge in fields.strings("merges"):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise LoadError(f"{fields.path}: {PREFIX}merges: {merge!r} is not a pair of tokens")
        pairs.append((left, right))
    return pairs


class _Fields:
    """Typed access to the tokenizer's metadata."""

    def __init__(self, metadata: Mapping[str, object], path: Path) -> None:
        self._metadata = metadata
        self.path = path

    def has(self, name: str) -> bool:
        return PREFIX + name in self._metadata

    def text(self, name: str) -> str | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "a boolean", value)
        return value

    def token(self, name: str, size: int) -> int | None:
        """Return a token id below `size`; None where absent. Ids past the end mean none, as writers use -1."""
        value = self._metadata.get(PREFIX + name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, "a token id", value)
        if value in (-1, 0xFFFFFFFF):
            return None
        if value is not None and not 0 <= value < size:
            raise LoadError(f"{self.path}: {PREFIX}{name}: {value} is not below the {size} tokens")
        return value

    def array(self, name: str) -> list[Any]:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            raise LoadError(f"{self.path}: {PREFIX}{name} is missing")
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise self._wrong(name, "an array", value)
        return list(value)  # pyright: ignore[reportArgumentType]

    def strings(self, name: str) -> list[str]:
        values = self.array(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "an array of strings", values[:1])
        return values

    def _wrong(self, name: str, expected: str, value: object) -> LoadError:
        return LoadError(f"{self.path}: {PREFIX}{name}: expected {expected}, found {type(value).__name__}")
