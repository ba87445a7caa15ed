"""The vocabulary `bytes:`: one token a byte and a few specials, in pure Python, for engines without a model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferd.load.vocab import Vocabulary

BOS, EOS, TURN, END = range(256, 260)
SPECIALS = {"<|bos|>": BOS, "<|eos|>": EOS, "<|im_start|>": TURN, "<|im_end|>": END}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")


@dataclass(frozen=True)
class ByteSpecial:
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class ByteCodec:
    """UTF-8 bytes are the ids."""

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        if not special_tokens:
            return list(text.encode())
        ids: list[int] = []
        for part in _SPLIT.split(text):
            ids.extend((SPECIALS[part],) if part in SPECIALS else part.encode())
        return ids


def byte_vocabulary() -> Vocabulary:
    return Vocabulary(
        codec=ByteCodec(),
        pieces=[bytes([byte]) for byte in range(256)] + [b""] * len(SPECIALS),
        specials={token: ByteSpecial(text) for text, token in SPECIALS.items()},
        eos_ids=(EOS, END),
        bos_id=BOS,
        add_bos=False,
        names={"bos_token": "<|bos|>", "eos_token": "<|im_end|>"},
        templates={"default": TEMPLATE},
    )
