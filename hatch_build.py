"""Build hook: compile the CPU kernels where there is a C compiler; without one torch serves, and says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

FOLDER = Path("kernels", "inferd_kernels", "cpu")


class CpuKernelsHook(BuildHookInterface):
    """Adds the shared library to the wheel, or leaves it beside its sources for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = _load(Path(self.root, FOLDER, "build.py"))
        try:
            library = build.LIBRARY if build.is_current() else build.compile_library()
        except build.CompileError as error:
            build.LIBRARY.unlink(missing_ok=True)  # one of other sources would only be refused later
            self.app.display_warning(f"inferd is installed without its CPU kernels (torch serves): {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"
        if version != "editable":
            build_data["force_include"][str(library)] = f"inferd_kernels/cpu/{library.name}"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("inferd_cpu_build", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
