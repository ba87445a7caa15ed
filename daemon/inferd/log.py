"""Logging of all processes: structlog where it is installed, the standard library where not.

Lines go to standard error: readable on a terminal, JSON elsewhere. Prompt and output text is never
logged at INFO; what clients chose (ids, names) is escaped so that it cannot drive a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from inferd.config.schema import Log


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
    try:
        import structlog
    except ImportError:
        return _StandardLogger(part, level, as_json)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            lambda _logger, _method, facts: {name: clean(value) for name, value in facts.items()},
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        part=part,
    )


def clean(value: Any) -> Any:
    """Escape control characters of a string; other values pass."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


class _StandardLogger:
    """The same calls over the standard library."""

    def __init__(self, part: str, level: int, as_json: bool) -> None:
        self._part = part
        self._level = level
        self._as_json = as_json
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
        print(line, file=sys.stderr, flush=True)

    def debug(self, event: str, **facts: Any) -> None:
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log(logging.ERROR, event, facts)
