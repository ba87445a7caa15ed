"""Whether a daemon runs, answers and serves; engines that a dead one left behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.doctor.finding import Finding, failure, ok, warning
from inferd_client import Client, InferdError, Timeouts

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined
    from inferd_client.protocol import StatusReply

TOPIC = "daemon"
PATIENCE = Timeouts(connect=3.0, idle=3.0, total=5.0)
CHILDREN = ("inferd.engine.worker", "inferd.engine.rank", "inferd.text", "inferd.grammar")
UNKNOWN = "unknown"


def check(what: Examined) -> Iterator[Finding]:
    holder = lock_holder(what.paths.lock)
    if holder is None:
        yield ok(TOPIC, "no daemon runs here; `inferd serve` starts one")
    else:
        yield from _check_running(what.paths.runtime, holder)
    yield from check_orphans()


def lock_holder(lock: Path) -> str | None:
    """Return the process id in a lock file that is held; None when nobody holds it."""
    try:
        with lock.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(32).strip() or UNKNOWN
    except OSError:
        return None
    return None


def _check_running(runtime: Path, holder: str) -> Iterator[Finding]:
    start = time.monotonic()
    try:
        with Client(runtime, name="inferd-doctor", timeouts=PATIENCE) as client:
            status = client.status()
    except InferdError as error:
        remedy = f"kill {holder}" if holder != UNKNOWN else f"find it with: fuser {runtime}/*"
        yield failure(TOPIC, f"process {holder} holds {runtime} and does not answer: {error}", remedy)
        return
    took = 1000 * (time.monotonic() - start)
    yield ok(TOPIC, f"pid {status.pid}, {status.state}, answers in {took:.0f} ms")
    yield from _check_models(status)


def _check_models(status: StatusReply) -> Iterator[Finding]:
    for model in status.models:
        if model.state == "failed":
            yield failure(
                TOPIC, f"model {model.name} failed: {model.detail}", f"mend that, then: inferd load {model.name}"
            )
        elif model.stalled:
            yield warning(TOPIC, f"model {model.name} makes no progress", "it is restarted after daemon.stall_s twice")
        else:
            yield ok(TOPIC, f"model {model.name} is {model.state} on {model.device or 'no device yet'}")


def check_orphans(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Find engines of ours whose daemon is gone: they still hold memory."""
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            owner = folder.stat().st_uid
        except OSError:
            continue
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        mine = module in CHILDREN and fields[0] != "Z" and owner == os.getuid()
        if mine and not _same_program(folder, proc / fields[1]):
            yield warning(TOPIC, f"process {folder.name} ({module}) has lost its daemon", f"kill {folder.name}")


def _same_program(child: Path, parent: Path) -> bool:
    """Whether both run one interpreter: a daemon may be process 1 of its container, and orphans go to others than 1."""
    try:
        return os.readlink(child / "exe") == os.readlink(parent / "exe")
    except OSError:  # it is init's, or another user's
        return False
