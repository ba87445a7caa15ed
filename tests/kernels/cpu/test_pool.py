"""The threads of a program run every piece once, and operators in their order, however many they are."""

from __future__ import annotations

import ctypes
import threading
from ctypes import CFUNCTYPE, Structure, c_int32, c_void_p

import pytest
import torch

from inferd_kernels.cpu.library import Library, Reads
from inferd_kernels.cpu.program import Program, launch
from inferd_kernels.cpu.rows import norm_plain

CHUNKS = CFUNCTYPE(c_int32, c_void_p, c_int32)
RUN = CFUNCTYPE(None, c_void_p, c_int32, c_int32, c_void_p)
PIECES = [1, 2, 3, 7, 64, 0, 1, 5, 0, 129, 2]


class Op(Structure):
    _fields_ = [("chunks", CHUNKS), ("run", RUN)]


class Args(Structure):
    _fields_ = [("index", c_int32)]


class Log:
    """Operators of a third party that write down what ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int, int]] = []
        self.threads: set[int] = set()
        self._op = Op(CHUNKS(lambda args, _: PIECES[self._index(args)]), RUN(self._run))

    def record(self) -> Program:
        program = Program()
        with program.record():
            for index in range(len(PIECES)):
                somewhere = Reads(4096, 5, 1 << 20)  # asking for memory that is not there harms nobody
                launch(ctypes.addressof(self._op), Args(index), self, reads=somewhere if index % 2 else None)
        return program

    def _index(self, args: int) -> int:
        return Args.from_address(args).index

    def _run(self, args: int, chunk: int, chunks: int, _: int) -> None:
        self.ran.append((self._index(args), chunk, chunks))
        self.threads.add(threading.get_native_id())


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_piece_runs_once_and_operators_run_in_order(library: Library, threads: int) -> None:
    library.set_threads(threads)
    log = Log()
    program = log.record()
    for _ in range(30):
        log.ran.clear()
        program.run(tokens=1, sequences=1, sampled=1)
        assert [index for index, _, _ in log.ran] == sorted(index for index, _, _ in log.ran)
        wanted = [(index, chunk, count) for index, count in enumerate(PIECES) for chunk in range(count)]
        assert sorted(log.ran) == wanted
    assert len(log.threads) <= threads


def test_pieces_run_side_by_side(library: Library) -> None:
    """Two pieces that wait for each other: each thread has one."""
    library.set_threads(2)
    both = threading.Barrier(2)
    op = Op(CHUNKS(lambda _, __: 2), RUN(lambda *_: both.wait(20) and None))
    program = Program()
    with program.record():
        launch(ctypes.addressof(op), Args(0), op)
    for _ in range(20):
        program.run(tokens=1, sequences=1, sampled=1)
    assert not both.broken


def test_the_end_of_a_program_is_never_missed(library: Library) -> None:
    """Short programs by the thousand: whoever is late at the end of one must see it, and not wait for the next."""
    library.set_threads(2)
    x, weight, program = torch.randn(4, 64), torch.ones(64), Program()
    with program.record():
        for _ in range(3):
            norm_plain(x, weight, 1e-5)
    runner = threading.Thread(
        target=lambda: [program.run(tokens=4, sequences=1, sampled=1) for _ in range(100_000)], daemon=True
    )
    runner.start()
    runner.join(60)
    assert not runner.is_alive()
