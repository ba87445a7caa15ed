"""Compile what a launcher would run, for any architecture and without a GPU.

Launchers are called with tensors of the `meta` device; their kernel calls are caught and compiled with the
specialisation Triton's own launch would use, so what is tested is what runs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

SHARED_LIMIT = {80: 166912, 89: 101376, 90: 232448, 100: 232448}
"""Bytes of shared memory a program may have (CUDA programming guide, table of compute capabilities)."""

OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
"""Arguments of a launch that are the compiler's, not the kernel's."""

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


class Call(NamedTuple):
    """One kernel call of a launcher."""

    kernel: JITFunction
    args: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__


@dataclass(frozen=True)
class Compiled:
    name: str
    cubin: bytes
    ptx: str
    shared: int
    registers: int
    stack: int
    """Bytes of local memory a thread has: where spilled registers go."""


@contextmanager
def caught_calls() -> Iterator[list[Call]]:
    """Record kernel calls instead of running them."""
    calls: list[Call] = []

    def record(self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        bound = dict(zip(self.arg_names, args, strict=False)) | kwargs
        assert set(bound) == set(self.arg_names), f"{self.fn.__name__}: {set(bound) ^ set(self.arg_names)}"
        assert all(size >= 1 for size in grid)
        calls.append(Call(self, {name: bound[name] for name in self.arg_names}, options))

    original = JITFunction.run
    JITFunction.run = record  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        JITFunction.run = original  # type: ignore[method-assign]


def calls_of(launch: Callable[[], object]) -> list[Call]:
    with caught_calls() as calls:
        launch()
    assert calls
    return calls


def compile_call(call: Call, cc: int) -> Compiled:
    """Compile for compute capability `cc` (90 = 9.0)."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attrs: dict[tuple[int, ...], list[Any]] = {}
    for index, parameter in enumerate(call.kernel.params):
        value = call.args[parameter.name]
        kind, aligned = _specialise(parameter, value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(index,)] = value
        elif aligned:
            attrs[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=call.kernel, signature=signature, constexprs=constants, attrs=attrs)
    built = triton.compile(source, target=GPUTarget("cuda", cc, 32), options=dict(call.options))
    registers, stack = _resources(built.asm["cubin"])
    return Compiled(call.name, built.asm["cubin"], built.asm["ptx"], built.metadata.shared, registers, stack)


def _specialise(parameter: Any, value: Any) -> tuple[str, bool]:
    """Return the type of an argument and whether it counts as a multiple of 16, as a launch decides it."""
    if parameter.is_constexpr or value is None:
        return "constexpr", False
    special, aligns = not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment
    if isinstance(value, torch.Tensor):
        itemsize = value.element_size()
        return _POINTERS[value.dtype], special and aligns and (value.storage_offset() * itemsize) % 16 == 0
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_POINTERS[value.base.dtype][1:]}{list(value.block_shape)}>", False
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, int):
        if value == 1 and special:
            return "constexpr", False
        wide = not -(2**31) <= value < 2**31
        return "i64" if wide else "i32", special and value % 16 == 0
    assert isinstance(value, float), f"{parameter.name}: {value!r}"
    return "fp32", False


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return registers and bytes of stack of a compiled kernel, from the reader that Triton bundles."""
    exe = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        log = subprocess.run([str(exe), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", log)
    assert found, log
    return int(found[1]), int(found[2])
