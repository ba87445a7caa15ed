"""Constants of the protocol: version, limits, error codes."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

MAGIC = b"INFD"
MAJOR = 1
MINOR = 0
HEADER = MAGIC + bytes([MAJOR])

MAX_FRAME = 8 * 1024 * 1024
"""Default byte limit of one message; the daemon's own limit comes with WELCOME."""


class Code(StrEnum):
    """Every error code of the protocol."""

    BAD_FRAME = "bad_frame"
    PROTOCOL_MISMATCH = "protocol_mismatch"
    INVALID_PARAM = "invalid_param"
    CONTEXT_EXCEEDED = "context_exceeded"
    OVERLOADED = "overloaded"
    UNKNOWN_MODEL = "unknown_model"
    MODEL_LOAD_FAILED = "model_load_failed"
    ENGINE_LOST = "engine_lost"
    NUMERIC_ERROR = "numeric_error"
    SERVER_SHUTDOWN = "server_shutdown"
    SERVER_RESTARTED = "server_restarted"
    SLOW_CONSUMER = "slow_consumer"
    DUPLICATE_REQUEST = "duplicate_request"
    UNAUTHORIZED = "unauthorized"
    PLUGIN_FAILED = "plugin_failed"
    GRAMMAR_INVALID = "grammar_invalid"
    DEADLINE_EXCEEDED = "deadline_exceeded"


FinishReason = Literal["stop", "length", "cancelled", "error"]


class Caps:
    """Upper bounds of request fields, checked by `SamplingParams.problem` and the daemon."""

    N = 16
    LOGPROBS = 20
    STOP = 16
    STOP_CHARS = 256
    STOP_TOKEN_IDS = 256
    LOGIT_BIAS = 1024
    BAD_WORDS = 256
    ALLOWED_TOKEN_IDS = 65536
    GRAMMAR_BYTES = 262144
    GRAMMAR_DEPTH = 64
    CHOICES = 4096
    MESSAGES = 4096
    TOOLS = 128
    TOOL_DEPTH = 32
    TEMPLATE_ARGS = 64
    NAME_CHARS = 256
    ID_CHARS = 128
    MODEL_CHARS = 512
