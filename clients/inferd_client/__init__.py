"""Client library of inferd: `Client` (blocking) and `AsyncClient` over one core. Needs pyzmq and msgspec only.

Names are loaded when they are first used: the daemon imports `inferd_client.protocol` and pytest the fixtures, and
neither should pay for asyncio and ZeroMQ.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aio import AsyncClient
    from .aio_streams import AsyncEventStream, AsyncStream
    from .client import Client
    from .endpoints import Endpoints, default_runtime_dir
    from .errors import (
        BadFrame,
        ClientClosed,
        ConnectionFailed,
        ConnectionLost,
        ContextExceeded,
        DaemonError,
        DeadlineExceeded,
        DuplicateRequest,
        EngineLost,
        GrammarInvalid,
        InferdError,
        InvalidParam,
        ModelLoadFailed,
        NumericError,
        Overloaded,
        PluginFailed,
        ProtocolMismatch,
        RequestTimeout,
        ServerRestarted,
        ServerShutdown,
        SlowConsumer,
        Unauthorized,
        UnknownModel,
    )
    from .key_file import KeyFile
    from .options import NO_RETRY, ChatOptions, RequestOptions, RetryPolicy, Timeouts
    from .protocol import Code, Message, SamplingParams
    from .results import Choice, Completion, Piece
    from .sockets import Curve
    from .streams import EventStream, Stream

__all__ = [
    "NO_RETRY",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncStream",
    "BadFrame",
    "ChatOptions",
    "Choice",
    "Client",
    "ClientClosed",
    "Code",
    "Completion",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextExceeded",
    "Curve",
    "DaemonError",
    "DeadlineExceeded",
    "DuplicateRequest",
    "Endpoints",
    "EngineLost",
    "EventStream",
    "GrammarInvalid",
    "InferdError",
    "InvalidParam",
    "KeyFile",
    "Message",
    "ModelLoadFailed",
    "NumericError",
    "Overloaded",
    "Piece",
    "PluginFailed",
    "ProtocolMismatch",
    "RequestOptions",
    "RequestTimeout",
    "RetryPolicy",
    "SamplingParams",
    "ServerRestarted",
    "ServerShutdown",
    "SlowConsumer",
    "Stream",
    "Timeouts",
    "Unauthorized",
    "UnknownModel",
    "default_runtime_dir",
]

_HOMES = {
    "aio": ("AsyncClient",),
    "aio_streams": ("AsyncEventStream", "AsyncStream"),
    "client": ("Client",),
    "endpoints": ("Endpoints", "default_runtime_dir"),
    "errors": (
        "BadFrame",
        "ClientClosed",
        "ConnectionFailed",
        "ConnectionLost",
        "ContextExceeded",
        "DaemonError",
        "DeadlineExceeded",
        "DuplicateRequest",
        "EngineLost",
        "GrammarInvalid",
        "InferdError",
        "InvalidParam",
        "ModelLoadFailed",
        "NumericError",
        "Overloaded",
        "PluginFailed",
        "ProtocolMismatch",
        "RequestTimeout",
        "ServerRestarted",
        "ServerShutdown",
        "SlowConsumer",
        "Unauthorized",
        "UnknownModel",
    ),
    "key_file": ("KeyFile",),
    "options": ("NO_RETRY", "ChatOptions", "RequestOptions", "RetryPolicy", "Timeouts"),
    "protocol": ("Code", "Message", "SamplingParams"),
    "results": ("Choice", "Completion", "Piece"),
    "sockets": ("Curve",),
    "streams": ("EventStream", "Stream"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
