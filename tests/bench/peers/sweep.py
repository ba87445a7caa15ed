"""What memory allows: one read of as many bytes as the weights have, by all threads, as decoding one token takes."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from inferd.load.gguf import GgufFile
from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.program import launch
from inferd_kernels.cpu.structs import ProbeArgs
from tests.bench.peers.contestant import DECODED, Contestant, Part
from tests.bench.roofline import sweep_buffer

READ = 0
"""`PROBE_READ`"""


class Sweep(Contestant):
    """Reads a buffer where the others decode: its tokens a second are sweeps a second."""

    product = "sweep"
    parts = ("decode0",)

    def __init__(self, path: Path, file: str, threads: int) -> None:
        self.file = file
        num_bytes = sum(tensor.nbytes for tensor in GgufFile(path).tensors.values())
        load().set_threads(threads)
        self._data = sweep_buffer(num_bytes)
        self._out = torch.zeros(threads)

    def measure(self, part: Part, seed: int) -> dict[str, float]:
        args = ProbeArgs(self._data.data_ptr(), self._data.nbytes, 1, self._out.data_ptr(), READ)
        start = time.perf_counter()
        for _ in range(DECODED):
            launch("probe", args)
        return {part: DECODED / (time.perf_counter() - start)}
