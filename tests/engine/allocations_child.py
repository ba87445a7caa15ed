"""Count the allocations of native steps: `python -m tests.engine.allocations_child SHIM FOLDER`, with SHIM preloaded.

Prints what counting three allocations gives, then the count of each step of the second turn.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from inferd.link import Submit
from inferd_kernels.cpu.library import Library, load
from tests.engine.steady import PROMPT, ROWS, tiny_engine


def main(shim_path: str, folder: str) -> None:
    torch.set_num_threads(1)
    shim = ctypes.CDLL(shim_path)
    shim.count_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    print(shim.count_run(ctypes.cast(shim.allocate_three, ctypes.c_void_p), None, 1, 1))
    run = ctypes.cast(load()._lib.inferd_run, ctypes.c_void_p)
    counts: list[int] = []

    def counted(self: Library, steps: ctypes.Array, count: int, *, times: int = 1, news: int = -1) -> None:
        counts.append(shim.count_run(run, ctypes.addressof(steps), count, times))

    Library.run = counted
    load().set_threads(3)
    engine = tiny_engine(Path(folder))
    for turn in range(2):  # the second time, prompts find everything made
        for i, sampling in enumerate(ROWS):
            prompt = [5 + i + turn, *PROMPT]
            engine.submit(Submit(key=f"{turn}.{i}", client="c", prompt=prompt, sampling=sampling, eos_ids=()))
        if turn:
            counts.clear()
        while engine.has_work:
            engine.step()
    print(*counts)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
