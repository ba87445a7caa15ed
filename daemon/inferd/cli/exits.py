"""Exit codes of every command, for scripts. Numbers above 2 follow sysexits.h."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a finished command says."""

    OK = 0
    FAILURE = 1
    """It was tried and failed; the message says why."""
    USAGE = 2
    """Options or arguments are wrong."""
    NO_MODEL = 66
    """The model is not in the store, or no such file."""
    NOT_RUNNING = 69
    """No daemon answers."""
    BUSY = 75
    """A daemon runs already, or it is overloaded: try again later."""
    CONFIG = 78
    """A config file, a setting or a folder is wrong."""
    INTERRUPTED = 130
    """Ctrl-C."""


HELP = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 66 no such model, 69 daemon not running, "
    "75 already running or overloaded, 78 wrong configuration, 130 interrupted."
)
