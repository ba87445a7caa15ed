"""Client library of inferd: `Client` (blocking) and `AsyncClient` over one core. Needs pyzmq and msgspec only."""

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
