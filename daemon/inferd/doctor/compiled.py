"""The compiled CPU kernels, the instruction set they use, and the C compiler that Triton and a rebuild need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferd.doctor.finding import Finding, failure, ok, warning

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "kernels"
COMPILERS = ("cc", "gcc", "clang")


def check(what: Examined) -> Iterator[Finding]:
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    yield (
        ok(TOPIC, f"C compiler: {compiler}")
        if compiler
        else warning(TOPIC, "no C compiler: CPU kernels cannot be rebuilt, and Triton cannot start", "install gcc")
    )
    yield from _check_library(what, compiler)


def _check_library(what: Examined, compiler: str | None) -> Iterator[Finding]:
    from inferd_kernels.cpu import library

    why = library.why_missing()
    if why:
        remedy = library.build_command() if compiler else f"install gcc, then {library.build_command()}"
        if what.config.engine.linear == "native":
            yield failure(TOPIC, f"{why}; engine.linear = native needs them", remedy)
        else:
            yield warning(TOPIC, f"{why}; models on the CPU run through torch, many times slower", remedy)
        return
    found = library.load()
    others = [name for name, usable in found.tiers.items() if not usable]
    unused = f"; this CPU lacks {', '.join(others)}" if others else ""
    yield ok(TOPIC, f"CPU kernels: {found.tier} on {found.threads} of {os.cpu_count()} processors{unused}")
