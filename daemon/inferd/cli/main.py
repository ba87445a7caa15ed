"""Entry point of the `inferd` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.stderr.write("inferd: the command needs more than the client library: pip install 'inferd[daemon]'\n")
        sys.exit(1)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no exception but in debug mode gets out."""
    from inferd.cli.root import root

    given = list(arguments) if arguments is not None else None
    return guarded(lambda: root.main(given, prog_name="inferd", standalone_mode=False))


def guarded(work: Callable[[], object]) -> int:
    """Call `work` and return an exit code; every failure becomes one line on stderr."""
    import click

    from inferd.cli.errors import report, wants_traceback
    from inferd.cli.exits import Exit

    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else Exit.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return Exit.FAILURE
    except (Exception, KeyboardInterrupt) as error:
        if wants_traceback() and not isinstance(error, (click.ClickException, click.Abort, KeyboardInterrupt)):
            raise
        return report(error)


def _silence_stdout() -> None:
    """The reader of our output is gone: let nothing be flushed into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
