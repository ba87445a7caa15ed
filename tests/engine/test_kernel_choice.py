"""Which linear kernels an engine takes: what was asked for, or a refusal that says why not."""

from __future__ import annotations

import pytest

from inferd.config.schema import Engine
from inferd.engine.assembly import _kernels
from inferd.load.errors import LoadError
from inferd_kernels.available import runs_on_triton
from inferd_kernels.triton.tiling import interpreted


@pytest.mark.skipif(interpreted(), reason="the interpreter runs them on the CPU")
def test_triton_kernels_are_refused_where_they_cannot_run() -> None:
    with pytest.raises(LoadError, match=r"engine.linear = 'triton', but Triton kernels run on GPUs, not on cpu"):
        _kernels(Engine(linear="triton"), "cpu")


def test_the_cpu_takes_triton_kernels_only_when_asked() -> None:
    assert not runs_on_triton("cpu")
    assert not _kernels(Engine(), "cpu").triton
    assert not _kernels(Engine(linear="torch"), "cpu").triton
