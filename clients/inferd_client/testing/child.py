"""`python -m inferd_client.testing.child MODULE ARGS`: run a module that ends when its starter does.

Standard input is a pipe that the starter holds open and never writes to.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def follow_starter() -> None:
    """Ask this process to end as soon as the other end of its standard input is gone."""
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=_watch, args=(pipe,), name="starter", daemon=True).start()


def _watch(pipe: int) -> None:
    while os.read(pipe, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    follow_starter()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
