"""`inferd tune kernels` where there is nothing to tune."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.engine.tuning import tune_kernels


@pytest.mark.parametrize(("device", "why"), [("cpu", "run on GPUs, not on cpu"), ("cuda:9", "no device cuda:9")])
def test_without_a_gpu_it_says_so(device: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        tune_kernels(device, tmp_path / "x.json", lambda _name, _found: None)
    assert not (tmp_path / "x.json").exists()
