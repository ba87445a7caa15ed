"""Logging of all processes: structlog where it is installed, the standard library where not.

Lines go to standard error: readable on a terminal, JSON elsewhere; to the journal of systemd each with its
priority (sd-daemon(3)). Prompt and output text is never logged at INFO; what clients chose (ids, names) is
escaped so that it cannot drive a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

if TYPE_CHECKING:
    from inferd.config.schema import Log


PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""Levels as the priorities of syslog(3)."""


class Logger(Protocol):
    """The calls in use: an event in words, then its facts by name."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


def make_logger(settings: Log, part: str) -> Logger:
    """Return the logger of one part of the daemon, e.g. `front`."""
    level = getattr(logging, settings.level.upper())
    as_json = settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())
    journal = to_journal()
    try:
        import structlog
    except ImportError:
        return _StandardLogger(part, level, as_json, journal)
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    return structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", _StandardError())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            lambda _logger, _method, facts: {name: clean(value) for name, value in facts.items()},
            structlog.processors.format_exc_info,
            renderer,
            lambda _logger, method, text: with_priority(str(text), method) if journal else text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        part=part,
    )


def to_journal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard error is the stream to the journal that systemd opened for us."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def with_priority(text: str, level: str) -> str:
    """Return the text with the priority before each of its lines."""
    return "\n".join(f"<{PRIORITIES[level]}>{line}" for line in text.splitlines())


def clean(value: Any) -> Any:
    """Escape control characters of a string; other values pass."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


class _StandardError:
    """Standard error as it is when a line is written: a progress bar takes its place to print lines above itself."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _StandardLogger:
    """The same calls over the standard library."""

    def __init__(self, part: str, level: int, as_json: bool, journal: bool) -> None:
        self._part = part
        self._level = level
        self._as_json = as_json
        self._journal = journal
        self._time = logging.Formatter()

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if level < self._level:
            return
        record = logging.LogRecord(self._part, level, "", 0, event, (), None)
        moment, name = self._time.formatTime(record), record.levelname.lower()
        cleaned = {key: clean(value) for key, value in facts.items()}
        if self._as_json:
            known = {"part": self._part, "event": clean(event), "level": name, "timestamp": moment}
            line = json.dumps(known | cleaned, default=str)
        else:
            line = " ".join([moment, name, self._part, clean(event), *(f"{k}={v}" for k, v in cleaned.items())])
        print(with_priority(line, name) if self._journal else line, file=sys.stderr, flush=True)

    def debug(self, event: str, **facts: Any) -> None:
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log(logging.ERROR, event, facts)
