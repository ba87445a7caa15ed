"""Every setting of the daemon, typed, with its default. Frozen: changes make new objects."""

from __future__ import annotations

from typing import Annotated, Any, Literal, dataclass_transform

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0)]
"""A count or a number of bytes; 0 mostly stands for a derived value."""
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
"""Of money, power or time; 0 = not known."""
Period = Annotated[float, msgspec.Meta(gt=0)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables: an unknown key is an error."""


class Paths(Table):
    """Folders; empty = the platform's default (XDG, or systemd's directories)."""

    models: str = ""
    runtime: str = ""
    """Holds the sockets; mode 0700."""
    cache: str = ""
    state: str = ""


class Daemon(Table):
    max_queue: Count = 512
    """Requests that may wait over all clients and models."""
    max_client_requests: Count = 256
    """Unfinished requests of one client."""
    max_pending_bytes: Count = 512 * 1024 * 1024
    """Of all unfinished requests together, as text and as token ids."""
    max_clients: Count = 1024
    max_frame: Count = 8 * 1024 * 1024
    heartbeat_s: Period = 1.0
    client_timeout_s: Period = 30.0
    """A client silent for longer, with nothing to send to, is forgotten."""
    session_ttl_s: Seconds = 60.0
    """How long requests of a vanished connection may be resumed or answered."""
    out_buffer_bytes: Count = 256 * 1024
    """Per client: undelivered output past which a request ends as slow_consumer."""
    keep_alive_s: float = 300.0
    """Idle time before a model unloads; negative = never. The default model never unloads."""
    memory_limit: Size = 0
    """Bytes the ledger may grant on the host; 0 = what is available less a reserve."""
    memory_reserve: Size = 1 << 30
    load_timeout_s: Period = 600.0
    spare_worker: Literal["auto", "always", "off"] = "auto"
    """Keep an engine process that waits with everything imported: auto = while no model is loaded."""
    stall_s: Period = 60.0
    """A worker with work and no step for this long is reported stalled; at twice, restarted."""
    drain_s: Seconds = 30.0
    events_hz: Period = 2.0
    tcp: str = ""
    """`tcp://HOST:PORT`, for listed CURVE keys only: control and events are at the next two ports."""


class Text(Table):
    """The text process: chat templates and tokenization."""

    timeout_s: Period = 10.0
    max_output_chars: Count = 8_000_000


class Grammar(Table):
    """The process that tries grammars of structured output."""

    timeout_s: Period = 5.0
    """Processor time that one may take to compile; a request whose grammar takes more fails."""


class Traffic(Table):
    record: bool = True
    """Keep how long requests are and when they come; never their text."""


class Metrics(Table):
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Serve /metrics to Prometheus on this port of 127.0.0.1; 0 = not at all."""


class Cost(Table):
    """What device time costs. 0 = not known."""

    tariff_kwh: Amount = 0.0
    """Price of a kilowatt-hour."""
    currency: str = ""
    hardware_price: Amount = 0.0
    """Of the machine, written off over the hours it lives."""
    lifetime_hours: Amount = 0.0
    watts_busy: Amount = 0.0
    """Of the machine, used where no counter can be read."""
    watts_idle: Amount = 0.0
    """The same while idle; also what is taken off a measured total as the idle part."""


class Slo(Table):
    """Bounds within which a request's tokens are good ones; 0 = none."""

    ttft_ms: Amount = 0.0
    tpot_ms: Amount = 0.0


class Engine(Table):
    """Sizes and modes of an engine worker; 0 or `auto` = derived."""

    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    threads: Size = 0
    linear: Literal["auto", "native", "torch", "triton"] = "auto"
    """Linear layers on the CPU: compiled kernels on packed weights, or torch on float ones; auto = native if built.

    A GPU always uses Triton's and cuBLAS; `triton` asks for these kernels in Triton's interpreter, to test them.
    """
    graphs: bool = True
    """On a GPU: replay decode and verify steps as CUDA graphs; false runs every step call by call."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Plan and start the next step while the device works on this one; auto = on a GPU. The tokens are the same."""
    repack_cache: Size = 20 << 30
    """Bytes kept in the cache folder of weights in the order the compiled kernels read them; 0 = none."""
    max_context: Size = 0
    max_sequences: Count = 64
    token_budget: Size = 0
    chunk: Size = 0
    block_size: Count = 16
    kv_blocks: Size = 0
    kv_bytes: Size = 0
    device_reserve: Size = 0
    """Bytes of a GPU left to others; 0 = 8 percent where a display or graphics run on it, else 2, 512 MiB at least."""
    kv_format: Literal["auto", "fp32", "bf16", "fp16", "int8", "fp8"] = "auto"
    prefix_cache: bool = True
    batching: Literal["continuous", "static"] = "continuous"
    expand_gqa: bool = False
    """Baseline: every query head keeps a K/V of its own."""
    max_draft: Size = 4
    skip_ahead: Size = 16
    """How far behind a request shorter ones of its client may be picked, or any that fits if it does not; how often."""
    step_ms: Amount = 50.0
    """How long a step should take while sequences decode: prefill chunks are cut to that; 0 = no bound.

    The last chunk of a prompt may take three times the room, so that its first token does not wait for a remainder.
    """
    multi_step_ms: Amount = 10.0
    """How long a call may decode several tokens of each sequence in a row while nobody else waits; 0 = one a call.

    On the CPU with compiled kernels and without drafts. A call ends after the step in which a message arrives.
    """
    ageing_s: Period = 10.0
    """Waiting this long raises a request by one priority level."""
    memory: Size = 0
    """Bytes this worker may use; set by the front from its ledger."""


class Plugins(Table):
    """Pins: a plugin name per kind; empty = the resolver chooses."""

    architecture: str = ""
    parallel: str = ""
    quantizer: str = ""
    kv: str = ""
    attention: str = ""
    draft: str = "none"
    disable: tuple[str, ...] = ()


class Model(Table):
    """Settings of one model, over the general ones."""

    path: str = ""
    engine: dict[str, Any] = {}
    plugins: dict[str, Any] = {}
    chat_template: str = ""
    """A jinja file to use in place of the model's own template."""
    keep_alive_s: float | None = None


class Log(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class Config(Table):
    default_model: str = "smollm2-135m"
    preload: bool = True
    """Load the default model at start."""
    paths: Paths = Paths()
    daemon: Daemon = Daemon()
    text: Text = Text()
    grammar: Grammar = Grammar()
    traffic: Traffic = Traffic()
    metrics: Metrics = Metrics()
    cost: Cost = Cost()
    slo: Slo = Slo()
    engine: Engine = Engine()
    plugins: Plugins = Plugins()
    plugin: dict[str, dict[str, dict[str, Any]]] = {}
    """`[plugin.KIND.NAME]`: options of a plugin, checked against its own struct."""
    models: dict[str, Model] = {}
    log: Log = Log()

    def for_model(self, name: str) -> Config:
        """Return this config with the overrides of `[models.NAME]` merged in. Raises ValueError."""
        model = self.models.get(name)
        if model is None:
            return self
        return msgspec.structs.replace(
            self,
            engine=_merged(self.engine, model.engine, f"models.{name}.engine"),
            plugins=_merged(self.plugins, model.plugins, f"models.{name}.plugins"),
        )


def _merged(base: Any, over: dict[str, Any], where: str) -> Any:
    try:
        return msgspec.convert(msgspec.structs.asdict(base) | over, type(base))
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from None
