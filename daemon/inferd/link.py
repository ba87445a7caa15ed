"""Messages between the front process and its children (engine workers, the text process).

Same codec as the wire protocol: tagged msgspec structs over a ZeroMQ PAIR in the runtime directory.
Request keys are strings the front makes; they name a request for its whole life in the worker.
Times are CLOCK_MONOTONIC seconds, which all processes of one Linux machine share.
"""

from __future__ import annotations

from typing import Any, Literal, dataclass_transform

import msgspec

from inferd.plugin.manifest import ManifestEntry
from inferd_client.protocol import Code, FinishReason, PluginInfo, SamplingParams, TokenLogprob

PROCESS_BYTES = 320 << 20
"""An engine process beside weights, KV and activations: interpreter, torch and its libraries, the vocabulary.

The front grants it and the worker leaves it free."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Msg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the internal messages."""


# --- front to engine worker -------------------------------------------------------------------


class Grammar(Msg, array_like=True):
    """What an output must look like."""

    kind: Literal["json_schema", "regex", "grammar", "choice"]
    text: str
    """The schema and the choices as JSON, the other two as they are."""


class Submit(Msg, tag="submit"):
    key: str
    client: str
    """Fairness is over clients."""
    prompt: list[int]
    sampling: SamplingParams
    """`max_tokens` and `seed` are resolved; stop strings stay with the front, the grammar stands below."""
    grammar: Grammar | None = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    eos_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    queue_deadline: float | None = None


class Abort(Msg, tag="abort"):
    """End a request now, or one choice of it (its stop string matched). No output follows."""

    key: str
    choice: int | None = None


class Stop(Msg, tag="stop"):
    """Exit at once; the front has answered all requests."""


class Begin(Msg, tag="begin"):
    """The first message of all: load the model of this settings file (`WorkerSettings`)."""

    settings: str


EngineIn = Begin | Submit | Abort | Stop


# --- engine worker to front -------------------------------------------------------------------


class LoadProgress(Msg, tag="load_progress"):
    phase: str
    done: int = 0
    total: int = 0


class ModelCard(Msg):
    """What the front must know of a loaded model; nothing of it needs torch."""

    architecture: str
    dtype: str
    device: str
    vocab_size: int
    context: int
    eos_ids: tuple[int, ...]
    pieces: list[bytes]
    """UTF-8 bytes of each token id (b"" for special tokens): the front detokenizes with it."""
    special_ids: tuple[int, ...]
    plugins: dict[str, str]
    manifest: tuple[ManifestEntry, ...]
    rejected: tuple[tuple[str, str, str], ...] = ()
    """(kind, name, why) of plugins not chosen."""
    plugin_table: tuple[PluginInfo, ...] = ()
    """Every installed plugin with its state, as this worker found them: the answer to `plugins`."""
    exactness: str = ""
    exactness_by: str = ""
    eager_because: str = ""
    shape: dict[str, int] = {}
    shape_origin: dict[str, str] = {}
    weight_bytes: int = 0
    kv_bytes: int = 0
    weights_note: str = ""
    """How the weights are computed on, e.g. that they were dequantised."""
    compute_format: str = ""
    """Number format of the matrix products, a key of `Ceilings.flops`."""
    process_bytes: int = 0
    """Of a worker's process beside weights: interpreter, libraries, what loading left behind."""
    device_uuid: str = ""
    """Of a GPU: as the driver names it."""


class Ready(Msg, tag="ready"):
    card: ModelCard
    pid: int


class LoadFailed(Msg, tag="load_failed"):
    code: Code
    message: str


class SeqOutput(Msg, array_like=True, gc=False):
    """New tokens of one choice of one request after a step."""

    key: str
    choice: int
    ids: tuple[int, ...]
    finish: FinishReason | None = None
    stop_token: int | None = None
    """Set when a stop or EOS token ended it; that token is the last of `ids` all the same."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int = 0
    """This and the next three are totals of the choice so far."""
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    first_scheduled: float | None = None
    """With the first output only."""


class SeqError(Msg, array_like=True, gc=False):
    """A request that ends without its tokens: refused, timed out, bad numerics."""

    key: str
    code: Code
    message: str
    field: str | None = None
    limit: float | None = None


class SeqState(Msg, array_like=True, gc=False):
    """Where an unfinished request stands; sent for requests that changed or once a second."""

    key: str
    state: Literal["waiting", "prefill", "decode", "preempted"]
    done: int
    total: int
    reason: str = ""


Overlap = Literal["yes", "off", "host", "room", "idle"]
"""Whether a step was started before the outcome of this one was known, and if not, why: that is off, the host chooses
or reports tokens of this one, the pool has no room without preempting somebody, or there was nothing else to run."""


class StepStats(Msg, array_like=True, gc=False):
    """Gauges and increments of one step."""

    now: float
    prefill_s: float
    """Time of this step charged to each phase by its share of tokens."""
    decode_s: float
    running: int
    waiting: int
    prefilling: int
    decoding: int
    verifying: int
    preempted: int
    """Waiting requests that ran before."""
    kv_total: int
    kv_free: int
    kv_cached: int
    prefix_queries: int
    """Totals since load."""
    prefix_hits: int
    preemptions: int
    prefill_tokens: int
    """Increments of this step."""
    decode_tokens: int
    drafted: int
    accepted: int
    prefill_flops: float = 0.0
    """Floating operations of the prefill rows."""
    weight_bytes: int = 0
    """Bytes that the decode rows read: the weights once, and the KV in their view."""
    kv_bytes: float = 0.0
    emitted: int = 0
    """Output tokens of the rows that verified drafts."""
    overlap: Overlap | None = None
    """Of the step that this is the outcome of; None = of none."""
    later_steps: int = 0
    """Steps of decoding that the same call took after the first."""


class Charges(Msg, array_like=True, gc=False):
    """Device seconds of one step by request; together they are those of the step."""

    prefill: dict[str, float] = {}
    """By tokens."""
    decode: dict[str, float] = {}
    """By rows (reading weights) and by each row's KV bytes (scanning them)."""


class StepReport(Msg, tag="step"):
    """The one message a step."""

    outputs: list[SeqOutput]
    errors: list[SeqError]
    states: list[SeqState]
    stats: StepStats
    warnings: tuple[str, ...] = ()
    """What went wrong without ending a request, e.g. a draft plugin that raised and is now off."""
    charges: Charges = Charges()


class Warm(Msg, tag="warm"):
    """Everything is imported: `Begin` may come whenever a model is wanted."""

    bytes: int | None
    """Memory of the process alone."""


class Idle(Msg, tag="idle"):
    """Sent about once a second while there is no work: the worker lives."""

    now: float


class Ceilings(Msg, tag="ceilings"):
    """The best this machine was measured to do, as the worker uses it; sent once it is known."""

    read_bytes_s: float
    """Reading memory, all threads together."""
    flops: dict[str, float]
    """Operations a second of matrix products, by number format (`fp32`, `bf16`, `int8`)."""


class DeviceUse(Msg, tag="device_use"):
    """What the worker alone can tell of its device; sent about once a second."""

    activation_bytes: int | None = None
    """Scratch of steps: buffers that are kept, and the most that temporaries took."""
    total_bytes: int | None = None
    """Of a GPU, as torch sees it: for drivers whose own tools do not tell."""
    free_bytes: int | None = None


class Dying(Msg, tag="dying"):
    """Last words of a worker whose engine raised: it exits after them, and its requests are lost."""

    message: str


EngineOut = Warm | LoadProgress | Ready | LoadFailed | StepReport | Idle | Ceilings | DeviceUse | Dying


# --- front to text process --------------------------------------------------------------------


class TextOpen(Msg, tag="open"):
    """Load the tokenizer and template of a model."""

    model: str
    path: str
    """GGUF file, HF directory, or `bytes:` for the built-in byte vocabulary of the fake engine."""
    chat_template: str = ""
    """A jinja file in place of the model's own template (`[models.NAME] chat_template`)."""


class TextJob(Msg, tag="job"):
    """Render and/or tokenize. Exactly one of text and messages is set."""

    key: str
    model: str
    text: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    template_args: dict[str, Any] = {}
    add_bos: bool = True
    special_tokens: bool = False
    bad_words: tuple[str, ...] = ()


class TextDrop(Msg, tag="drop"):
    """Forget a job; no result follows."""

    key: str


TextIn = TextOpen | TextJob | TextDrop


# --- text process to front --------------------------------------------------------------------


class TextReady(Msg, tag="text_ready"):
    model: str
    error: str = ""
    has_template: bool = False


class TextResult(Msg, tag="text_result"):
    key: str
    ids: list[int] = []
    text: str | None = None
    """The rendered prompt, for `render`."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    """Set when the template or the input was at fault; the request fails with invalid_param."""
    field: str | None = None
    deaths: int = 0
    """Workers that ended, or were ended, at it."""


TextOut = TextReady | TextResult


# --- front to grammar process, and back -------------------------------------------------------


class GrammarJob(Msg, tag="grammar_job"):
    """Try a grammar."""

    key: str
    grammar: Grammar


class GrammarResult(Msg, tag="grammar_result"):
    key: str
    error: str = ""
    """Why it cannot be used; the request fails with grammar_invalid."""


_encode = msgspec.msgpack.Encoder().encode
engine_in = msgspec.msgpack.Decoder(EngineIn)
engine_out = msgspec.msgpack.Decoder(EngineOut)
text_in = msgspec.msgpack.Decoder(TextIn)
text_out = msgspec.msgpack.Decoder(TextOut)
grammar_in = msgspec.msgpack.Decoder(GrammarJob)
grammar_out = msgspec.msgpack.Decoder(GrammarResult)


def pack(message: Msg) -> bytes:
    return _encode(message)
