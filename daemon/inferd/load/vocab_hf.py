"""The vocabulary of a Hugging Face directory: tokenizer.json and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferd.load.errors import LoadError
from inferd.load.vocab import Vocabulary
from inferd.load.vocab_bpe import BpeCodec, piece_table
from inferd.load.vocab_templates import hf_templates

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MAX_JSON_BYTES = 256 * 1024 * 1024
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


def hf_vocabulary(folder: Path) -> Vocabulary:
    """Read a directory. Raises LoadError naming file and field."""
    settings = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    names = {name: text for name in NAMED if (text := token_text(settings.get(name))) is not None}
    tokenizer = _open_tokenizer(folder / "tokenizer.json")
    added = _complete_specials(tokenizer, settings, names)
    bos_id = _bos_id(tokenizer, names, folder, generation, config)
    return Vocabulary(
        codec=BpeCodec(tokenizer),
        pieces=piece_table(tokenizer, added),
        specials={index: token for index, token in added.items() if token.special},
        eos_ids=_eos_ids(tokenizer, names, folder, generation, config),
        bos_id=bos_id,
        add_bos=_add_bos(tokenizer, settings, bos_id),
        names=names,
        templates=hf_templates(folder, settings),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one. Raises LoadError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path}: more than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path}: expected a JSON object")
    return value


def token_text(value: object) -> str | None:
    """A token is written as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _open_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    content = read_json(path)
    if not content:
        raise LoadError(f"{path}: missing; only models with a tokenizer.json can be loaded")
    model = content.get("model")
    kind = model.get("type", "BPE" if "merges" in model else None) if isinstance(model, Mapping) else None
    if kind != "BPE" or not all("ByteLevel" in set(_types(content.get(k))) for k in ("pre_tokenizer", "decoder")):
        raise LoadError(f"{path}: model.type {kind!r}: only byte-level BPE tokenizers are supported")
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise LoadError(f"{path}: {error}") from None


def _types(node: object) -> Iterator[object]:
    """Yield the `type` of each part of a pre-tokenizer or decoder, sequences included."""
    if isinstance(node, Mapping):
        yield node.get("type")
        for child in (*node.get("pretokenizers", ()), *node.get("decoders", ())):
            yield from _types(child)


def _complete_specials(tokenizer: Tokenizer, settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[int, Any]:
    """Make tokens that only tokenizer_config.json calls special so; return added tokens by id."""
    from tokenizers import AddedToken

    wanted = {text: AddedToken(text, normalized=False, special=True) for text in names.values()}
    for entry in settings.get("additional_special_tokens") or ():
        if (text := token_text(entry)) is not None:
            wanted[text] = AddedToken(text, normalized=False, special=True)
    wanted |= dict(_declared(settings))
    added = tokenizer.get_added_tokens_decoder()
    present = {token.content: token for token in added.values()}
    for text, token in wanted.items():
        known = tokenizer.token_to_id(text) is not None
        if known and (text not in present or (token.special and not present[text].special)):
            tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    return tokenizer.get_added_tokens_decoder()


def _declared(settings: Mapping[str, Any]) -> Iterator[tuple[str, AddedToken]]:
    """Yield the tokens of `added_tokens_decoder` in tokenizer_config.json."""
    from tokenizers import AddedToken

    table = settings.get("added_tokens_decoder")
    for entry in table.values() if isinstance(table, Mapping) else ():
        text = token_text(entry)
        if text is not None and isinstance(entry, Mapping):
            flags = {k: bool(entry.get(k, False)) for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            yield text, AddedToken(text, **flags)


def _bos_id(
    tokenizer: Tokenizer, names: Mapping[str, str], folder: Path, generation: dict[str, Any], config: dict[str, Any]
) -> int | None:
    if "bos_token" in names:
        return tokenizer.token_to_id(names["bos_token"])
    found = _ids(generation, "bos_token_id", folder / "generation_config.json")
    found += _ids(config, "bos_token_id", folder / "config.json")
    return found[0] if found else None


def _add_bos(tokenizer: Tokenizer, settings: Mapping[str, Any], bos_id: int | None) -> bool:
    """tokenizer_config.json decides; where it is silent, what the tokenizer's own post-processor does."""
    if bos_id is None:
        return False
    declared = settings.get("add_bos_token")
    if isinstance(declared, bool):
        return declared
    return tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos_id]


def _eos_ids(
    tokenizer: Tokenizer, names: Mapping[str, str], folder: Path, generation: dict[str, Any], config: dict[str, Any]
) -> tuple[int, ...]:
    """Every source counts: none replaces another."""
    found = set(_ids(generation, "eos_token_id", folder / "generation_config.json"))
    found.update(_ids(config, "eos_token_id", folder / "config.json"))
    if isinstance(text_config := config.get("text_config"), dict):
        found.update(_ids(text_config, "eos_token_id", folder / "config.json"))
    named = tokenizer.token_to_id(names["eos_token"]) if "eos_token" in names else None
    return tuple(sorted(found if named is None else found | {named}))


def _ids(table: Mapping[str, Any], field: str, path: Path) -> list[int]:
    """Read an id, a list of ids or nothing; negative means none."""
    value = table.get(field)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise LoadError(f"{path}: {field}: expected a token id or a list of them, found {value!r}")
    return [v for v in values if v >= 0]
