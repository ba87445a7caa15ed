"""Run operators, or record them: a step is recorded once and then replayed with one call.

While a `Program` records, `launch` appends the operator instead of running it, `empty` hands out memory of
the program's own arena, and row counts are read from the program's counters at replay.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextvars import ContextVar
from ctypes import Structure, c_int32
from typing import Any, Literal, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inferd_kernels.cpu.arena import Arena
from inferd_kernels.cpu.library import NO_FILE, Reads, Step, load

Count = Literal["tokens", "sequences", "sampled", "kept", "steps", "step"]

_recording: ContextVar[Program | None] = ContextVar("recording", default=None)


class Counts(Structure):
    """What a step has of each; kernels read it at replay. `step` of `steps` are done where there are several."""

    _fields_ = [(name, c_int32) for name in get_args(Count)]


class Program:
    """A list of native calls over preallocated buffers."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._arena = Arena()
        self._rows: Count = "tokens"
        self._calls: list[tuple[int, Structure, Reads]] = []
        self._kept: list[Any] = []
        self._steps: ctypes.Array[Step] | None = None

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Append what is launched inside. Raises RuntimeError for a computation by torch, which would be left out."""
        token = _recording.set(self)
        try:
            with _NoTorch():
                yield
        finally:
            _recording.reset(token)
        self._steps = (Step * len(self._calls))(
            *(Step(op, ctypes.addressof(args), reads) for op, args, reads in self._calls)
        )

    @contextlib.contextmanager
    def rows(self, count: Count) -> Iterator[None]:
        """Let the operators recorded inside run over as many rows as this count says."""
        before, self._rows = self._rows, count
        try:
            yield
        finally:
            self._rows = before

    @property
    def num_bytes(self) -> int:
        """Of the memory that its calls work in."""
        return self._arena.num_bytes

    def __len__(self) -> int:
        return len(self._calls)

    def run(
        self, *, tokens: int, sequences: int, sampled: int, kept: int = 0, steps: int = 1, news: int = NO_FILE
    ) -> int:
        """Replay with these counts, which must not exceed what the buffers were made for; return the steps done.

        Several steps take an `advance` between them. They end early where something can be read from the file `news`.
        """
        assert self._steps is not None
        counts = self.counts
        counts.tokens, counts.sequences, counts.sampled, counts.kept = tokens, sequences, sampled, kept
        counts.steps, counts.step = steps, 0
        load().run(self._steps, len(self._steps), times=steps, news=news)
        return counts.step if steps > 1 else 1

    def address(self, count: Count) -> int:
        return ctypes.addressof(self.counts) + getattr(Counts, count).offset

    def append(self, op: int, args: Structure, kept: tuple[Any, ...], reads: Reads) -> None:
        self._calls.append((op, args, reads))
        self._kept.append(kept)


class _NoTorch(TorchDispatchMode):
    """Lets views and new tensors pass, and nothing that computes on values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap the method below for its compiler, and import that for it: a second at every load."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        reads = any(isinstance(arg, torch.Tensor) for arg in args)
        if reads and not func.is_view:
            raise RuntimeError(f"torch's {func} cannot be part of a recorded step")
        return out


def recording() -> Program | None:
    """Return the program that records now, if any."""
    return _recording.get()


def launch(op: str | int, args: Structure, *kept: Any, reads: Reads | None = None) -> None:
    """Run an operator (a name of this library, or the address of a `struct op`), or record it.

    `kept` are objects whose memory `args` points to and that must live as long as a recorded program;
    buffers from `empty` need not be named. `reads` is memory that threads may read ahead while they wait.
    """
    address = load().op(op) if isinstance(op, str) else op
    program = _recording.get()
    if program is not None:
        program.append(address, args, kept, reads or Reads())
        return
    load().run((Step * 1)(Step(address, ctypes.addressof(args))), 1)


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return memory for an output; a recording program's buffers are reused once nobody refers to them."""
    program = _recording.get()
    return torch.empty(shape, dtype=dtype) if program is None else program._arena.empty(shape, dtype)


class RowCount:
    """Where an operator reads its number of rows: of the recording program, or this call's own."""

    def __init__(self, count: int, kind: Count | None = None) -> None:
        program = _recording.get()
        self._own = c_int32(count)
        if program is None:
            self.address = ctypes.addressof(self._own)
        else:
            self.address = program.address(kind or program._rows)
