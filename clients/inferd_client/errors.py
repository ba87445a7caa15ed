"""Exceptions of the client library: one for each error code, and those that arise on this side.

InferdError
  ClientClosed            the client was closed under the call
  ConnectionFailed        no daemon answered in time (also a ConnectionError)
  ConnectionLost          the daemon or some of its answers went away (also a ConnectionError)
  RequestTimeout          a time-out of this side ran out (also a TimeoutError)
  DaemonError             the daemon said no; one subclass for each code of the protocol
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .protocol import Code, Error, Usage

if TYPE_CHECKING:
    from .results import Completion


class InferdError(Exception):
    """Base of everything this library raises on purpose."""

    partial: Completion | None = None
    """What a generation had produced before it failed; None where nothing had come."""


class ClientClosed(InferdError):
    """The client was closed before the call was answered."""


class ConnectionFailed(InferdError, ConnectionError):
    """No daemon answered at the endpoint within the connect time-out. Nothing was sent."""


class ConnectionLost(InferdError, ConnectionError):
    """The connection broke and what was lost cannot be made up for."""


class RequestTimeout(InferdError, TimeoutError):
    """A time-out of the client ran out; a generation is cancelled at the daemon."""

    def __init__(self, kind: str, seconds: float) -> None:
        super().__init__(f"{kind.replace('_', ' ')} time-out of {seconds:g} s ran out")
        self.kind = kind
        """first_token, idle or total."""
        self.seconds = seconds


class DaemonError(InferdError):
    """An `error` answer. Subclasses fix `code`; `str()` is the daemon's message."""

    code: ClassVar[Code | None] = None

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: float | None = None,
        retry_after: float | None = None,
        retry_safe: bool = False,
        usage: Usage | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        """The option at fault, under its name as a keyword."""
        self.limit = limit
        """The bound that was exceeded."""
        self.retry_after = retry_after
        """Seconds after which a new try makes sense."""
        self.retry_safe = retry_safe
        """True: nothing was generated, so the same request may be sent again."""
        self.usage = usage
        self.request_id = request_id


class BadFrame(DaemonError):
    """A message was not valid protocol: a fault of one of the two libraries."""

    code = Code.BAD_FRAME


class ProtocolMismatch(DaemonError):
    """Client and daemon speak different majors of the protocol: update the older one."""

    code = Code.PROTOCOL_MISMATCH


class InvalidParam(DaemonError, ValueError):
    """A field is unknown, of the wrong type or out of range; `field` names it. Also raised before sending."""

    code = Code.INVALID_PARAM


class ContextExceeded(DaemonError, ValueError):
    """Prompt and max_tokens do not fit the model's context; `limit` is its length."""

    code = Code.CONTEXT_EXCEEDED


class Overloaded(DaemonError):
    """A queue is full; `retry_after` says when to try again."""

    code = Code.OVERLOADED


class UnknownModel(DaemonError, LookupError):
    """No such model is loaded or in the store."""

    code = Code.UNKNOWN_MODEL


class ModelLoadFailed(DaemonError):
    """The model could not be loaded; the message says why."""

    code = Code.MODEL_LOAD_FAILED


class EngineLost(DaemonError):
    """The engine worker died; the daemon restarts it. `retry_safe` says whether tokens had been made."""

    code = Code.ENGINE_LOST


class NumericError(DaemonError):
    """The model produced NaN or infinite logits for this request."""

    code = Code.NUMERIC_ERROR


class ServerShutdown(DaemonError):
    """The daemon is draining or stopping."""

    code = Code.SERVER_SHUTDOWN


class ServerRestarted(DaemonError):
    """Another instance of the daemon answers now; the request died with the old one."""

    code = Code.SERVER_RESTARTED


class SlowConsumer(DaemonError):
    """This client read too slowly and its output buffer at the daemon was full."""

    code = Code.SLOW_CONSUMER


class DuplicateRequest(DaemonError):
    """An unfinished request of this session has the same id."""

    code = Code.DUPLICATE_REQUEST


class Unauthorized(DaemonError, PermissionError):
    """This client's role or session does not allow the call."""

    code = Code.UNAUTHORIZED


class PluginFailed(DaemonError):
    """A plugin raised while serving the request."""

    code = Code.PLUGIN_FAILED


class GrammarInvalid(DaemonError, ValueError):
    """A grammar or schema of the request cannot be used."""

    code = Code.GRAMMAR_INVALID


class DeadlineExceeded(DaemonError, TimeoutError):
    """deadline_ms or queue_timeout_ms ran out at the daemon."""

    code = Code.DEADLINE_EXCEEDED


ERRORS: dict[Code, type[DaemonError]] = {kind.code: kind for kind in DaemonError.__subclasses__() if kind.code}


def from_answer(answer: Error) -> DaemonError:
    """Return the exception for an `error` answer."""
    return ERRORS[answer.code](
        answer.message,
        field=answer.field and answer.field.removeprefix("sampling."),
        limit=answer.limit,
        retry_after=None if answer.retry_after_ms is None else answer.retry_after_ms / 1000,
        retry_safe=answer.retry_safe,
        usage=answer.usage,
        request_id=answer.id,
    )
