"""The default model, where `make test` (or `inferd pull smollm2-135m`) put it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.load.errors import LoadError
from inferd.load.store import Store


def smollm2_path() -> Path:
    """Return the GGUF file, or skip the calling test and say how to get it."""
    try:
        return Store(RuntimePaths.of(load_config().config).models).resolve("smollm2-135m")
    except LoadError as error:
        pytest.skip(str(error))


@cache
def smollm2_of_transformers() -> Any:
    """Return the tokenizer that transformers makes of the file; slow, so made once."""
    from transformers import AutoTokenizer

    path = smollm2_path()
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
