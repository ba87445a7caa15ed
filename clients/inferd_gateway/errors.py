"""Errors in the form of the OpenAI API: one status and body for everything that can go wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import inferd_client as ic

INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
SERVER = "server_error"


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    return invalid(param, message, "unsupported_parameter")


# status, type, code: the exact class first, so that a subclass of several is found by its own row
_ANSWERS: dict[type[ic.InferdError], tuple[int, str, str]] = {
    ic.InvalidParam: (400, INVALID, "invalid_value"),
    ic.ContextExceeded: (400, INVALID, "context_length_exceeded"),
    ic.GrammarInvalid: (400, INVALID, "grammar_invalid"),
    ic.Unauthorized: (403, "permission_error", "unauthorized"),
    ic.UnknownModel: (404, INVALID, "model_not_found"),
    ic.DuplicateRequest: (409, INVALID, "duplicate_request"),
    ic.Overloaded: (429, "rate_limit_error", "overloaded"),
    ic.NumericError: (500, SERVER, "numeric_error"),
    ic.PluginFailed: (500, SERVER, "plugin_failed"),
    ic.BadFrame: (500, SERVER, "bad_frame"),
    ic.ProtocolMismatch: (500, SERVER, "protocol_mismatch"),
    ic.SlowConsumer: (500, SERVER, "slow_consumer"),
    ic.ModelLoadFailed: (503, UNAVAILABLE, "model_load_failed"),
    ic.EngineLost: (503, UNAVAILABLE, "engine_lost"),
    ic.ServerShutdown: (503, UNAVAILABLE, "server_shutdown"),
    ic.ServerRestarted: (503, UNAVAILABLE, "server_restarted"),
    ic.ConnectionFailed: (503, UNAVAILABLE, "daemon_unavailable"),
    ic.ConnectionLost: (503, UNAVAILABLE, "daemon_unavailable"),
    ic.ClientClosed: (503, UNAVAILABLE, "server_shutdown"),
    ic.DeadlineExceeded: (504, "timeout_error", "deadline_exceeded"),
    ic.RequestTimeout: (504, "timeout_error", "timeout"),
}
_PARAMS = {"prompt_ids": "prompt", "template_args": "chat_template_kwargs", "json_schema": "response_format"}
"""Fields that clients of the gateway know under another name."""


def from_client(error: ic.InferdError) -> ApiError:
    """Return the answer for an error of the client library."""
    status, kind, code = _ANSWERS.get(type(error), (500, SERVER, "internal_error"))
    headers: dict[str, str] = {}
    param = None
    if isinstance(error, ic.DaemonError):
        if error.field is not None:
            head, dot, rest = error.field.removeprefix("sampling.").partition(".")
            param = _PARAMS.get(head, head) + dot + rest
        wait = error.retry_after if error.retry_after is not None else 1.0
        if isinstance(error, ic.Overloaded) or error.retry_safe:
            headers["retry-after"] = str(max(1, math.ceil(wait)))
    return ApiError(status, str(error), kind=kind, code=code, param=param, headers=headers)


def explain(error: Exception) -> ApiError:
    """Return the answer for any exception; of one that is nobody's fault but ours nothing is told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ic.InferdError):
        return from_client(error)
    return ApiError(500, "internal error of the gateway", kind=SERVER, code="internal_error")
