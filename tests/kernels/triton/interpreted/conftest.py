"""Collect these tests only where the interpreter is on: it is chosen when a kernel's module is imported."""

from inferd_kernels.triton.tiling import interpreted

collect_ignore_glob = [] if interpreted() else ["test_*.py"]
