from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.equivalence.models import Model, make
from tests.tiny import tiny_llama


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Return a tiny model by name, written and decoded by the oracle once."""
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: make(folder, name))


@pytest.fixture(scope="package")
def llama(model: Callable[[str], Model]) -> Path:
    return model("llama").path


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one narrow layer, for tests of what surrounds the model, many times over."""
    return tiny_llama(tmp_path_factory.mktemp("small"), layers=1, hidden=16, inner=16, heads=2, kv_heads=1)
