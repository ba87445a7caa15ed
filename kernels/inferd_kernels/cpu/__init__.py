"""C kernels for the CPU: a library without torch, its Python binding, and the linear kernels on it.

`launch` runs an operator, or records it while a `Program` is being made. Where the library was not built
(no compiler at install) `load` says so and torch serves.
"""

from inferd_kernels.cpu.library import Library, LibraryMissingError, load
from inferd_kernels.cpu.program import Program, launch

__all__ = ["Library", "LibraryMissingError", "Program", "launch", "load"]
