"""Errors of the front: why a start failed, why a request is refused."""

from __future__ import annotations

from inferd_client.protocol import Code

EX_FAILURE = 1
"""The model to serve was tried and cannot be loaded."""
EX_NOINPUT = 66
"""The model to serve is absent."""
EX_TEMPFAIL = 75
"""Another daemon runs there."""
EX_CONFIG = 78


class StartError(RuntimeError):
    """The daemon cannot start; one line with the remedy, and the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Refusal(ValueError):
    """A request cannot be served; becomes the `error` message that answers it."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str | None = None,
        limit: float | None = None,
        retry_after_ms: int | None = None,
        retry_safe: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.limit = limit
        self.retry_after_ms = retry_after_ms
        self.retry_safe = retry_safe


def invalid(field: str, message: str, limit: float | None = None) -> Refusal:
    """A parameter is out of its range."""
    return Refusal(Code.INVALID_PARAM, f"{field}: {message}", field=field, limit=limit)
