"""Load the compiled library, once a process, and say which instruction set it uses."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from types import ModuleType

from inferd_kernels.cpu.threads import physical_cores

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "libinferd_cpu.so"
NO_FILE = -1


class LibraryMissingError(Exception):
    """The kernels were not built, or not from these sources; the text says what to do."""


class Reads(Structure):
    """What an operator reads from end to end, in units that its threads share out in order."""

    _fields_ = [("first", c_void_p), ("units", c_int64), ("unit_bytes", c_int64)]


class Step(Structure):
    _fields_ = [("op", c_void_p), ("args", c_void_p), ("reads", Reads)]


class Library:
    """The C functions with their types. Use `load`."""

    def __init__(self, path: Path) -> None:
        self._lib = CDLL(str(path))
        self._lib.inferd_tier_name.argtypes = [c_int32, POINTER(c_int32)]
        for name in ("inferd_tier_name", "inferd_tier", "inferd_source_hash"):
            getattr(self._lib, name).restype = c_char_p
        self._lib.inferd_use_tier.argtypes = [c_char_p]
        self._lib.inferd_op.argtypes = [c_char_p]
        self._lib.inferd_op.restype = c_void_p
        self._lib.inferd_run.argtypes = [c_void_p, c_int32, c_int32, c_int32]
        self._lib.inferd_set_threads.argtypes = [c_int32]
        self._lib.inferd_advise.argtypes = [c_void_p, c_int64]
        self._lib.inferd_advise.restype = None
        self._lib.inferd_share_cores.argtypes = [c_char_p, c_char_p]
        self._lib.inferd_waited_ns.restype = c_int64
        self._lib.inferd_reserve.argtypes = [c_int64]
        self._lib.inferd_reserve.restype = None
        self.set_threads(physical_cores())

    @property
    def tier(self) -> str:
        """The instruction-set tier in use."""
        return self._lib.inferd_tier().decode()

    @property
    def tiers(self) -> dict[str, bool]:
        """Every tier of this build, best first, and whether this machine can run it."""
        found: dict[str, bool] = {}
        usable = c_int32()
        while name := self._lib.inferd_tier_name(len(found), byref(usable)):
            found[name.decode()] = bool(usable.value)
        return found

    @property
    def multiplies_bf16(self) -> bool:
        """The tier in use has an instruction for dot products of bf16, which pays for rounding to it."""
        return self.tier == "avx512bf16"

    def use_tier(self, name: str) -> None:
        """Run this tier from now on. Raises ValueError when this machine cannot."""
        if self._lib.inferd_use_tier(name.encode()):
            raise ValueError(f"tier {name!r} cannot run here; known: {self.tiers}")

    @property
    def threads(self) -> int:
        return self._lib.inferd_threads()

    def set_threads(self, threads: int) -> None:
        """Run on this many threads, the caller's own included. Raises ValueError."""
        if self._lib.inferd_set_threads(threads):
            raise ValueError(f"cannot run on {threads} threads")

    @property
    def source_hash(self) -> str:
        return self._lib.inferd_source_hash().decode()

    def op(self, name: str) -> int:
        """Return the address of an operator of the tier in use."""
        address = self._lib.inferd_op(name.encode())
        if not address:
            raise ValueError(f"the library has no operator {name!r}")
        return address

    def run(self, steps: ctypes.Array[Step], count: int, *, times: int = 1, news: int = NO_FILE) -> None:
        """Run a program `times` times; less often where something can be read from the file `news` in between.

        Raises OSError when threads cannot be started.
        """
        error = self._lib.inferd_run(ctypes.addressof(steps), count, times, news)
        if error:
            raise OSError(error, "cannot start the threads of the CPU kernels")

    def advise(self, address: int, num_bytes: int) -> None:
        """Ask for large pages."""
        self._lib.inferd_advise(address, num_bytes)

    def share_cores(self, folder: Path | None) -> None:
        """Take turns with the processes that do so by the same folder; None: with nobody. Raises OSError."""
        names = ("", "") if folder is None else (str(folder / "turn.next"), str(folder / "turn.now"))
        error = self._lib.inferd_share_cores(*(name.encode() for name in names))
        if error:
            raise OSError(error, f"cannot take turns by files in {folder}")

    @property
    def waited_s(self) -> float:
        """Seconds that this process waited for its turn."""
        return self._lib.inferd_waited_ns() / 1e9

    def reserve(self, num_bytes: int) -> None:
        """Have this much spare memory in every thread from the next program on."""
        self._lib.inferd_reserve(num_bytes)


@cache
def load() -> Library:
    """Return the library of this process. Raises LibraryMissingError."""
    remedy = f"run `{build_command()}`"
    if not LIBRARY.exists():
        raise LibraryMissingError(f"the CPU kernels are not built: {remedy}")
    try:
        library = Library(LIBRARY)
    except AttributeError as error:
        raise LibraryMissingError(f"the CPU kernels are of an older version ({error}): {remedy}") from None
    builder = _builder()
    if builder is not None and builder.source_hash() != library.source_hash:
        raise LibraryMissingError(f"the CPU kernels are older than their sources: {remedy}")
    return library


def why_missing() -> str:
    """Return the reason why the kernels cannot be used; empty when they can."""
    try:
        load()
    except (LibraryMissingError, OSError) as error:
        return str(error)
    return ""


def build_command() -> str:
    """Return what a user runs to have the library made from the sources here; it takes a C compiler."""
    in_checkout = (HERE.parents[2] / "Makefile").exists()
    return "make kernels" if in_checkout else f"{sys.executable} {HERE / 'build.py'}"


def _builder() -> ModuleType | None:
    """The build script, where the sources lie beside it."""
    path = HERE / "build.py"
    if not path.exists() or not (HERE / "src" / "abi.h").exists():
        return None
    spec = importlib.util.spec_from_file_location("inferd_kernels_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
