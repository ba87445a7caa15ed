"""Which files of a model repository or folder are taken; never code, never pickles."""

from __future__ import annotations

import re
from collections.abc import Iterable

from inferd.load.errors import LoadError, NotFound

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+ -]*")
_WANTED = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
    r"|added_tokens\.json|chat_template\.jinja|additional_chat_templates/[^/]+\.jinja"
    r"|[^/]+\.safetensors|[^/]+\.safetensors\.index\.json|quantize_config\.json|LICENSE(\.\w+)?"
)
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def select_files(names: Iterable[str], wanted: str | None, where: str) -> tuple[str, list[str]]:
    """Return (entry, files): the named file, else a whole safetensors model, else the only GGUF file.

    Raises LoadError that lists the choices.
    """
    safe = [name for name in names if is_safe(name)]
    ggufs = sorted(name for name in safe if name.endswith(".gguf"))
    if wanted is not None:
        return _one_gguf(wanted, ggufs, where)
    if "config.json" in safe and any(name.endswith(".safetensors") for name in safe):
        return ".", sorted(name for name in safe if _WANTED.fullmatch(name))
    if len(ggufs) == 1:
        return _one_gguf(ggufs[0], ggufs, where)
    if ggufs:
        raise LoadError(f"{where} holds several models; add one of these after a colon: {', '.join(ggufs)}")
    raise LoadError(f"{where} holds neither a GGUF file nor config.json with safetensors")


def is_safe(name: str) -> bool:
    """True for a relative path that stays where it is put."""
    return len(name) <= 512 and all(_PART.fullmatch(part) for part in name.split("/"))


def _one_gguf(wanted: str, ggufs: list[str], where: str) -> tuple[str, list[str]]:
    if wanted not in ggufs:
        raise NotFound(f"{where} holds no {wanted!r}; GGUF files there: {', '.join(ggufs) or 'none'}")
    if _SPLIT_GGUF.search(wanted):
        raise LoadError(f"{where}: {wanted} is a part of a split model; only models in one file can be loaded")
    return wanted, [wanted]
