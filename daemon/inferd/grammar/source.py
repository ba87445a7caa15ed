"""What a request asks its output to look like, taken out of its parameters. Without llguidance: the front reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferd.link import Grammar
from inferd_client.protocol.grammar import GRAMMAR_FIELDS

if TYPE_CHECKING:
    from inferd_client.protocol import SamplingParams


def grammar_of(sampling: SamplingParams) -> Grammar | None:
    """Return what the output of a request must look like, None where anything goes."""
    for kind in GRAMMAR_FIELDS:
        value = getattr(sampling, kind)
        if value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            return Grammar(kind=kind, text=text)
    return None


def without_grammar(sampling: SamplingParams) -> SamplingParams:
    """Return the parameters without the grammar, which travels apart from them."""
    return msgspec.structs.replace(sampling, json_schema=None, regex=None, grammar=None, choice=None)
