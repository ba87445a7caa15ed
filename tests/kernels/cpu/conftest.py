"""Every tier this machine can run, on one and two threads; skips where the kernels were not built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from inferd_kernels.cpu.library import Library, load, why_missing

torch.set_num_threads(1)


def usable_tiers() -> list[str]:
    return ["none"] if why_missing() else [name for name, usable in load().tiers.items() if usable]


@pytest.fixture
def library() -> Iterator[Library]:
    """The library, left afterwards as it was."""
    missing = why_missing()
    if missing:
        pytest.skip(missing)
    found = load()
    tier, threads = found.tier, found.threads
    yield found
    found.use_tier(tier)
    found.set_threads(threads)


@pytest.fixture(params=usable_tiers())
def tier(request: pytest.FixtureRequest, library: Library) -> str:
    library.use_tier(request.param)
    return request.param
