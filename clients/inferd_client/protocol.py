"""The wire protocol, version 1: frames, messages, codes, limits. See clients/PROTOCOL.md.

Both ends import this module; it needs msgspec only. Everything that crosses a socket is one of the
tagged structs below, as msgpack. Unknown fields of a request are refused, of a reply ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T")

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
    MESSAGES = 4096
    ID_CHARS = 128
    MODEL_CHARS = 512


# --- request building blocks ------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything a client sends."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything the daemon sends."""


class SamplingParams(Request):
    """How tokens are chosen and when to stop. Names and meanings follow vLLM and OpenAI."""

    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """0 = off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output."""
    presence_penalty: float = 0.0
    """Over output only, like frequency_penalty."""
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None = a fresh one, returned in `done`. Choice i uses seed + i."""
    n: int = 1
    max_tokens: int | None = None
    """None = up to the end of the context."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Leave the matched stop string in the text."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Top alternatives reported for each output token besides the sampled one (0 = only it)."""
    prompt_logprobs: int | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None

    def problem(self) -> tuple[str, str] | None:
        """Return (field, message) of the first value out of range; None when all are sound.

        The one validator: the client calls it before sending, the daemon on arrival. What needs the
        vocabulary (token ids below its size) is checked by the daemon.
        """
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                return name, "must be a finite number"
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                return name, f"must be within {low} and {high}, got {value}"
        if self.top_p <= 0:
            return "top_p", "must be above 0"
        if self.repetition_penalty <= 0:
            return "repetition_penalty", "must be above 0"
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            return "min_tokens", f"{self.min_tokens} exceeds max_tokens {self.max_tokens}"
        for name, limit in _COUNTS:
            value = getattr(self, name)
            if value is not None and len(value) > limit:
                return name, f"at most {limit} entries, got {len(value)}"
        if any(not s or len(s) > Caps.STOP_CHARS for s in self.stop):
            return "stop", f"each stop string has 1 to {Caps.STOP_CHARS} characters"
        if any(not w or len(w) > Caps.STOP_CHARS for w in self.bad_words):
            return "bad_words", f"each entry has 1 to {Caps.STOP_CHARS} characters"
        if any(not math.isfinite(b) or abs(b) > 1000 for b in self.logit_bias.values()):
            return "logit_bias", "biases must be finite and within -1000 and 1000"
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            if any(i < 0 for i in getattr(self, name) or ()):
                return name, "token ids must not be negative"
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            return "allowed_token_ids", "must not be empty"
        return None


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("seed", 0, 2**63 - 1),
    ("n", 1, Caps.N),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, Caps.LOGPROBS),
    ("prompt_logprobs", 0, Caps.LOGPROBS),
)
_COUNTS: tuple[tuple[str, int], ...] = (
    ("stop", Caps.STOP),
    ("stop_token_ids", Caps.STOP_TOKEN_IDS),
    ("logit_bias", Caps.LOGIT_BIAS),
    ("bad_words", Caps.BAD_WORDS),
    ("allowed_token_ids", Caps.ALLOWED_TOKEN_IDS),
)


class Message(Request):
    """One turn of a chat. `content` None is allowed where tool calls stand instead."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


# --- client to daemon, either socket ----------------------------------------------------------


class Hello(Request, tag="hello"):
    """First message on a connection, on each socket. `session` resumes an earlier one."""

    major: int = MAJOR
    minor: int = MINOR
    client: str = ""
    session: str | None = None


class Ping(Request, tag="ping"):
    """Heartbeat; answered by `pong`. Any traffic counts as one."""

    nonce: int = 0


# --- client to daemon, data socket ------------------------------------------------------------


class Generate(Request, tag="generate"):
    """Continue a prompt, or answer a chat. Exactly one of prompt, prompt_ids, messages is set."""

    id: str
    model: str = ""
    """Empty = the daemon's default model."""
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    template_args: dict[str, Any] = {}
    """Extra names for the chat template (e.g. enable_thinking); scalars only."""
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    """-100 to 100; higher runs first."""
    deadline_ms: int | None = None
    """Whole time allowed from arrival; `deadline_exceeded` after it."""
    queue_timeout_ms: int | None = None
    """Longest wait for a first slot."""
    special_tokens: bool = False
    """Text prompt: True lets text that spells a special token become that token."""
    keep_alive_s: float | None = None
    """Keep the model loaded this long after the request; negative = for ever."""


class Tokenize(Request, tag="tokenize"):
    id: str
    model: str = ""
    text: str = ""
    add_bos: bool = True
    special_tokens: bool = False


class Render(Request, tag="render"):
    """Dry run of the chat template: text and ids, nothing generated."""

    id: str
    messages: list[Message]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    template_args: dict[str, Any] = {}


# --- client to daemon, control socket ---------------------------------------------------------


class Cancel(Request, tag="cancel"):
    """Cancel a request of this session; idempotent. `id` names the cancel call itself."""

    id: str
    request: str


class Status(Request, tag="status"):
    id: str


class Models(Request, tag="models"):
    id: str


class Load(Request, tag="load"):
    id: str
    model: str
    keep_alive_s: float | None = None


class Unload(Request, tag="unload"):
    """Unload when its running requests are done; `force` cancels them."""

    id: str
    model: str
    force: bool = False


class Plugins(Request, tag="plugins"):
    id: str


class Drain(Request, tag="drain"):
    """Stop accepting, finish what runs within `timeout_s`, then exit."""

    id: str
    timeout_s: float | None = None


# --- daemon to client -------------------------------------------------------------------------


class Limits(Reply):
    max_frame: int
    max_queue: int
    max_client_requests: int
    max_context: int | None = None
    """Of the default model, once loaded."""


class Welcome(Reply, tag="welcome"):
    major: int
    minor: int
    version: str
    instance: str
    """Changes with every start of the daemon."""
    session: str
    """Secret; owns this client's requests over both sockets and reconnects."""
    role: Literal["user", "admin"]
    limits: Limits
    heartbeat_s: float
    resumed: bool = False


class Pong(Reply, tag="pong"):
    nonce: int = 0


class Accepted(Reply, tag="accepted"):
    """The request is queued."""

    id: str
    prompt_tokens: int
    max_tokens: int
    """Resolved limit."""


class Progress(Reply, tag="progress"):
    """Sent at least once a second while nothing else is."""

    id: str
    state: Literal["loading", "text", "waiting", "prefill", "decode", "preempted"]
    done: int = 0
    total: int = 0
    """Prompt tokens computed and in all, in state prefill; bytes or steps in state loading."""
    reason: str = ""
    """Why it waits: blocks, budget, slots, priority, loading."""


class TokenLogprob(Reply, array_like=True):
    token: int
    logprob: float
    rank: int
    """1 = most likely."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob), most likely first."""


class Tokens(Reply, tag="tokens"):
    """A piece of output. Deltas never retract; text may lag ids while a stop string or a character
    is incomplete, and catches up by the last message of the choice."""

    id: str
    seq: int
    """0, 1, 2... over the whole request."""
    choice: int = 0
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    """Set on the last message of a choice."""


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0


class Timings(Reply):
    """Seconds from arrival on one monotonic clock; None where there is nothing to measure."""

    queue_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0


class Finish(Reply):
    choice: int
    reason: FinishReason
    stop: str | int | None = None
    """The stop string or stop token that ended it."""
    seed: int = 0


class Done(Reply, tag="done"):
    """End of a request, sent exactly once unless `error` is."""

    id: str
    reason: FinishReason
    """Of choice 0."""
    finish: tuple[Finish, ...]
    usage: Usage
    timings: Timings


class Error(Reply, tag="error"):
    """End of a request or answer to a call that failed. `id` None: no request could be named."""

    code: Code
    message: str
    id: str | None = None
    field: str | None = None
    limit: float | None = None
    retry_after_ms: int | None = None
    retry_safe: bool = False
    """True: nothing was generated, the same request may be sent again."""
    usage: Usage | None = None


class Tokenized(Reply, tag="tokenized"):
    id: str
    ids: list[int]


class Rendered(Reply, tag="rendered"):
    id: str
    text: str
    ids: list[int]


class Ok(Reply, tag="ok"):
    id: str
    detail: str = ""


class MemoryEntry(Reply):
    """One line of the ledger."""

    owner: str
    bytes: int


class DeviceStatus(Reply):
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    """What the ledger may grant."""
    ledger: tuple[MemoryEntry, ...] = ()
    unified: bool = False


class ModelStatus(Reply):
    name: str
    state: Literal["loading", "ready", "draining", "unloading", "restarting", "failed"]
    path: str = ""
    detail: str = ""
    """Phase of a load, or why it failed."""
    pid: int | None = None
    device: str = ""
    dtype: str = ""
    architecture: str = ""
    plugins: dict[str, str] = {}
    """Kind to chosen plugin."""
    exactness: str = ""
    exactness_by: str = ""
    """The plugin that lowers it most."""
    eager_because: str = ""
    shape: dict[str, int] = {}
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    kv_blocks_total: int | None = None
    kv_blocks_free: int | None = None
    kv_blocks_cached: int | None = None
    running: int = 0
    waiting: int = 0
    prefilling: int = 0
    decoding: int = 0
    verifying: int = 0
    preempted: int = 0
    restarts: int = 0
    expires_s: float | None = None
    """Seconds until an idle unload; None = never or busy."""
    progress_age_s: float | None = None
    """Seconds since the engine last finished a step, while it has work."""


class Latency(Reply):
    """Percentiles over the recent window, in seconds; None while nothing was seen."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class RequestStatus(Reply):
    id: str
    client: str
    model: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    reason: str = ""


class StatusReply(Reply, tag="status"):
    """Answer to `status`, and the body of each snapshot on the events socket."""

    id: str = ""
    seq: int = 0
    instance: str = ""
    version: str = ""
    pid: int = 0
    live: bool = True
    ready: bool = False
    state: Literal["starting", "serving", "draining"] = "serving"
    uptime_s: float = 0.0
    default_model: str = ""
    devices: tuple[DeviceStatus, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    requests: tuple[RequestStatus, ...] = ()
    clients: int = 0
    queue_limit: int = 0
    counters: dict[str, float] = {}
    """Monotonic totals under their Prometheus names."""
    latency: dict[str, Latency] = {}
    """By name: queue, prefill, ttft, tpot, itl, e2e."""
    warnings: tuple[str, ...] = ()


class ModelInfo(Reply):
    """A model in the store or loaded."""

    name: str
    path: str
    bytes: int
    architecture: str = ""
    quantization: str = ""
    context: int | None = None
    loaded: bool = False
    state: str = ""
    default: bool = False
    problem: str = ""


class ModelsReply(Reply, tag="models"):
    id: str
    models: tuple[ModelInfo, ...]


class PluginInfo(Reply):
    name: str
    kind: str
    state: Literal["available", "chosen", "rejected", "FAILED", "disabled"]
    source: str
    """Distribution that brought it."""
    version: str = ""
    api: str = ""
    target: str = ""
    exactness: str = ""
    why: str = ""
    """Why it was not chosen, or the traceback of a failure."""


class PluginsReply(Reply, tag="plugins"):
    id: str
    plugins: tuple[PluginInfo, ...]


class ModelEvent(Reply, tag="model"):
    """On the events socket: a model changed state."""

    seq: int
    name: str
    state: str
    detail: str = ""


Data = Hello | Ping | Generate | Tokenize | Render
Control = Hello | Ping | Cancel | Status | Models | Load | Unload | Plugins | Drain
Answer = (
    Welcome
    | Pong
    | Accepted
    | Progress
    | Tokens
    | Done
    | Error
    | Tokenized
    | Rendered
    | Ok
    | StatusReply
    | ModelsReply
    | PluginsReply
)
Event = StatusReply | ModelEvent

_encoder = msgspec.msgpack.Encoder()
data_decoder = msgspec.msgpack.Decoder(Data)
control_decoder = msgspec.msgpack.Decoder(Control)
answer_decoder = msgspec.msgpack.Decoder(Answer)
event_decoder = msgspec.msgpack.Decoder(Event)


class FrameError(ValueError):
    """A message that is not valid protocol; `code` says which error answers it."""

    def __init__(self, message: str, code: Code = Code.BAD_FRAME, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


def encode(message: Request | Reply) -> list[bytes]:
    """Return the frames of one message, without the routing identity."""
    return [HEADER, _encoder.encode(message)]


def decode(frames: Sequence[bytes], decoder: msgspec.msgpack.Decoder[T], *, max_frame: int = MAX_FRAME) -> T:
    """Parse the frames of one message. Raises FrameError, never anything else."""
    if len(frames) != 2:
        raise FrameError(f"expected 2 frames after the identity, got {len(frames)}")
    header, body = frames
    if len(header) != len(HEADER) or not header.startswith(MAGIC):
        raise FrameError("the first frame must be INFD and the protocol major")
    if header[-1] != MAJOR:
        raise FrameError(f"protocol {header[-1]} was spoken, this end speaks {MAJOR}", Code.PROTOCOL_MISMATCH)
    if len(body) > max_frame:
        raise FrameError(f"message of {len(body)} bytes exceeds max_frame {max_frame}")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise FrameError(str(error), Code.INVALID_PARAM, _field_of(str(error))) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise FrameError(f"undecodable message: {error}") from None


def _field_of(text: str) -> str | None:
    """Find the field a msgspec message speaks of: its path, or the unknown name it quotes."""
    if " - at `$" in text:
        return text.rsplit(" - at `$", 1)[1].rstrip("`").lstrip(".") or None
    return text.split("`")[1] if text.count("`") >= 2 else None


def request_id_of(frames: Sequence[bytes]) -> str | None:
    """Dig the `id` out of a message that failed to decode, so that its sender can be answered."""
    try:
        raw = msgspec.msgpack.decode(frames[-1]) if frames else None
    except (msgspec.MsgspecError, RecursionError, ValueError):  # hostile bytes: no id is the answer
        return None
    value = raw.get("id") if isinstance(raw, dict) else None
    return value if isinstance(value, str) and len(value) <= Caps.ID_CHARS else None
