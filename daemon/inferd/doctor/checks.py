"""All checks in order; one that fails itself becomes a finding and stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from inferd.doctor import compiled, daemon, folders, gpus, memory, models, plugins, software
from inferd.doctor.finding import Finding, failure

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.paths import RuntimePaths
    from inferd.config.schema import Config


class Examined(NamedTuple):
    """What the checks look at."""

    config: Config
    files: tuple[Path, ...]
    """Config files in use."""
    paths: RuntimePaths


CHECKS: tuple[tuple[str, Callable[[Examined], Iterator[Finding]]], ...] = (
    ("software", software.check),
    ("config", folders.check_config),
    ("folders", folders.check),
    ("daemon", daemon.check),
    ("memory", memory.check),
    ("gpu", gpus.check),
    ("kernels", compiled.check),
    ("plugins", plugins.check),
    ("models", models.check),
)


def examine(what: Examined) -> Iterator[Finding]:
    """Yield the findings of every check as they come."""
    for topic, check in CHECKS:
        try:
            yield from check(what)
        except Exception as error:  # noqa: BLE001 - the machine may be broken in any way
            yield failure(topic, f"the check itself failed: {type(error).__name__}: {error}", "please report it")
