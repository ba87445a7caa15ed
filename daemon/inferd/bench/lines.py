"""A child process that is asked and answers in JSON lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


class LineChild:
    """Started at once; `ask` waits for it to be ready."""

    def __init__(self, command: Sequence[object]) -> None:
        self._command = [str(word) for word in command]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._ready: dict[str, Any] | None = None

    def ready(self) -> dict[str, Any]:
        """Wait for the first line, which says that it is ready, and return it. Raises RuntimeError."""
        if self._ready is None:
            self._ready = self._read()
        return self._ready

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Send a question and return its answer. Raises RuntimeError with what the child complained of."""
        assert self._process.stdin is not None
        self.ready()
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        """Read the next line of JSON; libraries print lines of their own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        assert self._process.stderr is not None
        self._process.wait()
        raise RuntimeError(f"{' '.join(self._command)} ended: {self._process.stderr.read()[-800:]}")
