"""Free memory of the host, and who holds the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferd.devices import host_memory
from inferd.doctor.finding import GIB, Finding, gib, ok, warning

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "memory"
LOW = GIB // 2
SHOWN = 3


def check(what: Examined) -> Iterator[Finding]:
    memory = host_memory()
    if memory is None:
        yield warning(TOPIC, "/proc/meminfo cannot be read", "set daemon.memory_limit")
        return
    settings = what.config.daemon
    room = settings.memory_limit or memory.free - settings.memory_reserve
    text = f"{gib(memory.free)} of {gib(memory.total)} are free, {gib(max(0, room))} of them for models"
    holders = ", ".join(biggest())
    if room < LOW:
        remedy = f"end what holds memory ({holders}), or lower daemon.memory_reserve"
        yield warning(TOPIC, text, remedy)
    else:
        yield ok(TOPIC, f"{text}; most is held by {holders}" if holders else text)


def biggest() -> list[str]:
    """Name the processes with most memory of their own, as far as we may look."""
    import psutil

    found: list[tuple[int, str]] = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        info = process.info["memory_info"]
        if info is not None and info.rss - info.shared > LOW:
            size = info.rss - info.shared
            found.append((size, f"{process.info['name']} (pid {process.info['pid']}) {gib(size)}"))
    return [text for _, text in sorted(found, reverse=True)[:SHOWN]]
