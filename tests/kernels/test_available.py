"""Asking about Triton for the CPU must not load it: that takes 100 MB of every worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = """
import sys
from inferd_kernels.available import why_no_triton
print(bool(why_no_triton("cpu")), "triton" in sys.modules)
"""


@pytest.mark.parametrize(("interpret", "said"), [("", "True False"), ("1", "False True")])
def test_triton_is_loaded_only_where_it_can_run(interpret: str, said: str) -> None:
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": interpret}
    child = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == said
