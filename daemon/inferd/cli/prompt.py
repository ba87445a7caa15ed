"""Read what the user says: one line, continued lines, or a block between triple quotes."""

from __future__ import annotations

import sys
from collections.abc import Callable

FENCE = '"""'
PROMPT = "> "
MORE = ". "


class Reader:
    """Reads one message at a time; on a terminal with line editing and history."""

    def __init__(self, ask: Callable[[str], str] | None = None) -> None:
        self._ask = ask or _terminal_ask()

    def read(self) -> str | None:
        """Return the next message, None at the end of the input. Raises KeyboardInterrupt."""
        try:
            line = self._ask(PROMPT)
            if line.strip().startswith(FENCE):
                return self._block(line.strip().removeprefix(FENCE))
            return self._continued(line)
        except EOFError:
            return None

    def _continued(self, line: str) -> str:
        parts = []
        while line.endswith("\\"):
            parts.append(line[:-1])
            line = self._ask(MORE)
        return "\n".join([*parts, line])

    def _block(self, first: str) -> str:
        """Collect lines up to the closing quotes; the end of the input closes them too."""
        parts = [first] if first else []
        while not (parts and parts[-1].rstrip().endswith(FENCE)):
            try:
                parts.append(self._ask(MORE))
            except EOFError:
                return "\n".join(parts)
        parts[-1] = parts[-1].rstrip().removesuffix(FENCE)
        return "\n".join(parts if parts[-1] else parts[:-1])


def _terminal_ask() -> Callable[[str], str]:
    if not sys.stdin.isatty():
        return lambda _prompt: input()
    try:
        import readline  # noqa: F401  gives `input` editing and history
    except ImportError:
        return input
    return input
