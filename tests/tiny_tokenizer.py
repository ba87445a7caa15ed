"""A handmade byte-level BPE of at most 300 tokens, written without the code under test."""

from __future__ import annotations

import json
from pathlib import Path

SPECIALS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID, IM_START_ID, IM_END_ID = range(4)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_MERGES = (
    *("t h", "th e", "i n", "a n", "e r", "o n", "r e", "Ġ t", "Ġ a", "Ġt he", "Ġ s", "Ġ w", "in g", "an d", "Ġ and"),
    *("Ã ©", "ð Ł", "ðŁ ĺ", "ðŁĺ Ģ"),
    *("o u", "Ġ o", "e n", "e s", "o r", "h e", "l l", "he ll", "hell o", "Ġw or", "l d", "Ġwor ld"),
    *("Ġ b", "Ġ c", "Ġ d", "Ġ f", "Ġ h", "Ġ i", "Ġ m", "Ġ n"),
)
"""The second row gives tokens that are whole, half and three quarters of a UTF-8 character."""


def byte_characters() -> dict[int, str]:
    """The printable stand-in of each byte, as GPT-2's byte-level BPE defines it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Return (tokens by id, merges): specials, then bytes with ASCII first, then merges while they fit."""
    characters = byte_characters()
    ascii_first = sorted(range(256), key=lambda byte: (not 32 <= byte < 127 and byte != 10, byte))
    tokens = [*SPECIALS, *(characters[byte] for byte in ascii_first)][:size]
    merges = list(_MERGES[: max(0, size - len(SPECIALS) - 256)])
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens += [f"<|unused_{i}|>" for i in range(len(tokens), size)]
    return tokens, merges


def tokenizer_json(size: int, *, add_bos: bool = False) -> dict[str, object]:
    """Return the content of a `tokenizer.json`."""
    tokens, merges = vocabulary(size)
    specials = [(i, token) for i, token in enumerate(tokens) if token in SPECIALS or token.startswith("<|unused_")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos = {"SpecialToken": {"id": SPECIALS[BOS_ID], "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, bos, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {SPECIALS[BOS_ID]: {"id": SPECIALS[BOS_ID], "ids": [BOS_ID], "tokens": [SPECIALS[BOS_ID]]}},
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in specials],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": template if add_bos else None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def write_tokenizer(folder: Path, size: int, *, add_bos: bool = False) -> None:
    """Write tokenizer.json, tokenizer_config.json (with a chat template) and generation_config.json."""
    files = {
        "tokenizer.json": tokenizer_json(size, add_bos=add_bos),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[BOS_ID],
            "eos_token": SPECIALS[IM_END_ID],
            "add_bos_token": add_bos,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID, IM_END_ID]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
