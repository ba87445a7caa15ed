"""What every load does first, done ahead: imports, the list of plugins, the compiled kernels. No model, no settings."""

from __future__ import annotations

from importlib import import_module

from inferd.plugin.ahead import import_builtins
from inferd_kernels.cpu.library import why_missing

LATER = (
    "inferd.engine.build",
    "inferd.engine.capture",
    "inferd.load.gguf_checkpoint",
    "inferd.load.hf",
    "inferd_kernels.cpu.linear",
)
"""What a load imports, and a listing of plugins does not."""


def up() -> None:
    """Import it all. Raises ImportError where the daemon itself cannot be imported."""
    for module in LATER:
        import_module(module)
    why_missing()
    import_builtins("cpu")
