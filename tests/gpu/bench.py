"""What parts share: the device, timing, random tensors. On the CPU (a dry run) sizes shrink and times mean nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

FLUSH_BYTES = 256 << 20
"""Overwritten between timed calls: several times the caches of any GPU."""


@dataclass
class Bench:
    device: str
    seconds: float
    """Time this part may take; it stops starting new measurements after."""
    seed: int = 0
    work: Path = Path()
    """Folder for files that are not results."""
    share: tuple[int, int] = (0, 1)
    """Which of how many processes this one is: they deal the cases of a part out among them."""
    rehearsal: bool = False
    """Run everything once, so that all kernels are compiled, and time nothing."""
    started: float = field(default_factory=time.monotonic)
    _dealt: int = 0

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    @property
    def time_left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

    def mine(self) -> bool:
        """Say whether the next case is this process's; all processes must ask in the same order."""
        self._dealt += 1
        return self._dealt % self.share[1] == self.share[0]

    def size(self, real: int, dry: int) -> int:
        """Return a size of the real run, or of a dry one."""
        return dry if self.dry else real

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.dry else torch.bfloat16

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def seconds_of(self, run: Callable[[], object], *, graph: bool = True, repeats: int = 20) -> float:
        """Return the median time of one call, caches cold: memory is flushed between calls.

        With `graph` the call is captured first, so that launching costs nothing; for what cannot be captured
        it is timed as it is.
        """
        if self.dry or self.rehearsal:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        call = self._captured(run) if graph else run
        for _ in range(3):
            call()
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(repeats):
            flush.zero_()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            call()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events) / 1000

    def sync(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give unused memory back to the device."""
        if not self.dry:
            torch.cuda.empty_cache()

    def _captured(self, run: Callable[[], object]) -> Callable[[], object]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay
