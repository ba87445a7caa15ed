"""What parts share: the device, timing, random tensors. On the CPU (a dry run) sizes shrink and times mean nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class Bench:
    device: str
    seconds: float
    """Time this part may take; it stops starting new measurements after."""
    seed: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    @property
    def time_left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

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
        if self.dry:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        call = self._captured(run) if graph else run
        for _ in range(3):
            call()
        flush = torch.empty(256 << 20, dtype=torch.uint8, device=self.device)
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
