"""Children that die with their parent, and whose death the parent notices at once.

Parent: `spawn` from the main thread (PR_SET_PDEATHSIG follows the thread that forked). The child's
standard input is the read end of a pipe whose write end only the parent holds; the child leads a
process group of its own, so that what it starts can be ended with it.
Child: `guard` first thing, before any import that takes time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


class Child:
    """A running child process. `pidfd` becomes readable when it ends."""

    def __init__(self, process: subprocess.Popen[bytes], death_pipe: int) -> None:
        self._process = process
        self._death_pipe = death_pipe
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)

    @property
    def exit_status(self) -> int | None:
        """The exit code (negative = the signal that ended it), None while it runs; reaps nothing."""
        if self._process.returncode is not None:
            return self._process.returncode
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def kill(self) -> None:
        """Kill the child and all of its process group."""
        if self._process.returncode is None:  # not reaped: the pid and the group are still the child's
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """End what is left of the group, wait for the child, free its handles; the exit status."""
        self.kill()
        status = self._process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            os.close(self._death_pipe)
            self.pidfd = self._death_pipe = -1
        return status


def spawn(module: str, *arguments: str, interpreter_options: Sequence[str] = ("-P",)) -> Child:
    """Start `python -m module arguments`. Call from the main thread; the child must call `guard`."""
    read_end, write_end = os.pipe()  # neither end is inherited, except read_end as standard input
    try:
        process = subprocess.Popen(
            [sys.executable, *interpreter_options, "-m", module, *arguments],
            stdin=read_end,
            start_new_session=True,
        )
    except OSError:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return Child(process, write_end)


def guard() -> None:
    """In a spawned child: die as soon as the parent does, even in the midst of a native call."""
    _die_with_parent_thread()
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=_watch, args=(pipe,), name="guard", daemon=True).start()


def fork(run: Callable[[], None]) -> int:
    """Call `run` in a copy of this process, which ends with it or with this one; the pid. From the main thread only.

    Other threads are not in the copy: it must not use what needs them, such as ZeroMQ. Raises OSError.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _die_with_parent_thread()
        if os.getppid() == parent:
            run()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing of the copied stack may run here
        traceback.print_exc()
    finally:
        os._exit(status)


def describe_exit(status: int) -> str:
    """Say how a process ended: `exit code 3` or `SIGKILL`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _die_with_parent_thread() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(pipe: int) -> None:
    """Wait for the parent's end of the pipe to close, then end this process and its own group."""
    while os.read(pipe, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def return_freed_memory() -> None:
    """Give back to the system what this process has freed; glibc keeps it otherwise, after a load for good."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
