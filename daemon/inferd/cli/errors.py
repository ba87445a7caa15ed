"""Turn any exception into one line with a remedy and an exit code."""

from __future__ import annotations

import os
import sys

import click

from inferd.cli.exits import Exit
from inferd_tui.escape import clean_line


class CliError(Exception):
    """A failure the user can act on."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code


def report(error: BaseException) -> int:
    """Print one line to stderr and return the exit code."""
    text, code = _describe(error)
    if text:
        click.echo(f"inferd: {clean_line(text)}", err=True)
    return code


def wants_traceback() -> bool:
    return os.environ.get("INFERD_LOG", "").lower() == "debug"


def _describe(error: BaseException) -> tuple[str, int]:
    if isinstance(error, CliError):
        return str(error), error.code
    if isinstance(error, click.ClickException):
        return _of_click(error), error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "", Exit.INTERRUPTED
    return _of_client(error) or _of_daemon(error) or _unexpected(error)


def _of_click(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context and not error.message.startswith("Usage: "):
        return f"{error.format_message().rstrip('.')}; see {context.command_path} --help"
    click.echo(error.format_message(), err=True)  # a group called without a command: its whole help
    return ""


def _of_client(error: BaseException) -> tuple[str, int] | None:
    """Errors of the client library; it is only looked at when something has imported it."""
    if "inferd_client" not in sys.modules:
        return None
    from inferd.cli.connect import explain

    return explain(error)


def _of_daemon(error: BaseException) -> tuple[str, int] | None:
    from inferd.config.errors import ConfigError
    from inferd.load.errors import LoadError, NotFound

    if isinstance(error, ConfigError):
        return str(error), Exit.CONFIG
    if isinstance(error, LoadError):
        return str(error), Exit.NO_MODEL if isinstance(error, NotFound) else Exit.FAILURE
    if isinstance(error, ModuleNotFoundError):
        return f"{error.msg}; install everything the daemon needs: pip install 'inferd[daemon]'", Exit.FAILURE
    return None


def _unexpected(error: BaseException) -> tuple[str, int]:
    where = "" if isinstance(error, OSError) else "; INFERD_LOG=debug shows where"
    return f"{type(error).__name__}: {error}{where}", Exit.FAILURE
