"""The plugin contracts: one small abstract class a kind.

A plugin package depends on this module and `inferd.plugin.types` only. Hooks return `PluginSpec`s;
the resolver imports the chosen target, calls it with the plugin's options and the step loop then
talks to that object directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from inferd.plugin.types import (
    Accept,
    AttentionLayer,
    DraftOutcome,
    DraftSequence,
    Exactness,
    Form,
    Kind,
    KVFormat,
    KVGroup,
    KVGroupSize,
    KVLayout,
    KVStats,
    LayerKV,
    ModelSpec,
    PackedWeight,
    Placement,
    ProbeContext,
    Qkv,
    Reject,
    StepInputs,
    TensorMeta,
    TensorRule,
    Verdict,
)

if TYPE_CHECKING:
    import msgspec
    import torch

API = (1, 0)
"""Version of these contracts. A plugin made for a newer one is refused."""


class Effect(NamedTuple):
    """What a lever is expected to do to one metric in one phase, against its baseline."""

    phase: Literal["prefill", "decode", "capacity"]
    metric: str
    sign: Literal["better", "worse", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a plugin can do; empty sets mean no restriction."""

    devices: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    head_dims: frozenset[int] = frozenset()
    kv_formats: frozenset[KVFormat] = frozenset()
    sliding_window: bool = True
    mla: bool = False
    capture_safe: bool = False
    capture_devices: frozenset[str] = frozenset()
    """Where it is capture-safe; empty = on all its devices."""
    max_verify: int | None = None
    """Most draft tokens verified in one pass; None = any number. The engine drafts no more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSpec:
    """One plugin, described without importing it."""

    name: str
    kind: Kind
    target: str
    """`package.module:Class`, imported only when chosen."""
    api: tuple[int, int] = API
    capabilities: Capabilities = Capabilities()
    exactness: Exactness = "token"
    effects: tuple[Effect, ...] = ()
    baseline: str = ""
    """Name of the plugin of this kind that the effects are measured against."""
    priority: int = 0
    options: type[msgspec.Struct] | None = None
    """The plugin's own config table, `[plugin.KIND.NAME]`."""
    overrides: str = ""
    """Name of a plugin of the same kind that this one replaces."""


class Plugin(ABC):
    """Base of all kinds: built as `Class(options)`; options is None without an options struct."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        """Say whether this plugin can serve `context`. Must not touch a device."""
        return Accept()


class ConfigView(Protocol):
    """Typed, strict reading of a checkpoint's own configuration (config.json or GGUF metadata)."""

    source: Literal["hf", "gguf"]

    def int(self, key: str, default: Any = ...) -> Any: ...
    def float(self, key: str, default: Any = ...) -> Any: ...
    def bool(self, key: str, default: Any = ...) -> Any: ...
    def str(self, key: str, default: Any = ...) -> Any: ...
    def raw(self, key: str, default: Any = ...) -> Any: ...

    def table(self, key: str, default: Any = ...) -> Any:
        """Return a nested table as a view of its own."""
        ...

    def keys(self) -> list[str]:
        """Return the keys that are set; a null counts as absent everywhere."""
        ...

    def tensor(self, name: str) -> TensorMeta | None:
        """Describe a tensor of the checkpoint: its presence can decide a flag (biases, tied head)."""
        ...

    def floats(self, name: str) -> tuple[float, ...]:
        """Read a small float tensor that belongs to the spec rather than to the weights."""
        ...


class Architecture(Plugin):
    """Read a checkpoint's configuration into a `ModelSpec` and name its tensors."""

    @abstractmethod
    def spec(self, config: ConfigView) -> ModelSpec:
        """Build the spec. Raises ValueError naming the key that is missing or unsupported."""

    @abstractmethod
    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        """One rule for every parameter of the `Decoder` of `spec`."""


class Quantizer(Plugin):
    """Turn stored tensors into packed forms and back. Device-free: no kernels here."""

    granularity: str = "tensor"

    @abstractmethod
    def accepts(self, meta: TensorMeta) -> Form | Reject:
        """Say which form `pack` will give for a tensor of this shape and storage type."""

    @abstractmethod
    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        """Pack one tensor.

        `data` is the stored tensor: typed and shaped from safetensors, flat uint8 bytes from a GGUF
        file whatever its type. Raises ValueError when its size does not fit `meta`.
        """

    @abstractmethod
    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        """Return float32 values of shape `weight.shape`."""


BlockTables = list[list[int]]
"""One list of block ids per KV group; owned by the manager, read by the scheduler. A negative id stands
for a block behind the group's window that was given back."""


class KVManager(Plugin):
    """Decide which blocks hold which tokens. Pure bookkeeping: no torch, no device.

    Sequences are named by an integer key. All counts are tokens. Blocks handed out are never
    shared for writing.
    """

    retains: bool = True
    """False: KV is thrown away after every token (the `recompute` baseline)."""

    @abstractmethod
    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        """Take over empty pools; called once."""

    @abstractmethod
    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        """Attach the longest cached prefix to a new sequence and return its length.

        At least one token is always left to compute. `domain` separates models, adapters, salts.
        """

    @abstractmethod
    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        """Make room for `num_tokens` tokens in all, or change nothing and return None.

        `limit` is the most tokens this sequence can ever hold; managers that reserve use it.
        """

    @abstractmethod
    def append(self, key: int, tokens: Sequence[int]) -> None:
        """Record that the KV of these next tokens is now computed and may be shared."""

    @abstractmethod
    def truncate(self, key: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens (rejected drafts); frees whole blocks after them.

        May raise ValueError for a cut into a block that another sequence shares.
        """

    @abstractmethod
    def free(self, key: int, *, reusable: bool = True) -> None:
        """Release a sequence; `reusable=False` also forgets its cached prefixes (bad numerics)."""

    @abstractmethod
    def stats(self) -> KVStats:
        """Count blocks over all groups, and prompt tokens looked up and found so far."""


class AttentionBackend(Plugin):
    """Write keys and values of a ragged batch into the cache and attend over it."""

    rounded_kv: KVFormat | None = None
    """What `engine.kv_format = "auto"` means where activations are rounded anyway; None: the compute type."""

    @abstractmethod
    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        """Choose how this group's KV is stored. Raises ValueError for what it cannot store."""

    @abstractmethod
    def plan(self, inputs: StepInputs, workspace: Workspace) -> Any:
        """Prepare one step, outside any capture; the result is handed to write and attend."""

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        """Apply qk-norm and RoPE, store k and v at `inputs.slots`, return q [T, heads, head_dim]."""
        from inferd_kernels.reference.kv_write import norm_rope_scatter

        return norm_rope_scatter(layer, x, kv, inputs)

    @abstractmethod
    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        """Return softmax(scale q k^T + mask) v, shape [T, heads, head_dim], same dtype as q."""


class DraftModel(Plugin):
    """Propose tokens that the target model then verifies."""

    active: bool = True
    """False: never proposes (the `none` baseline), so the engine does not ask."""

    @abstractmethod
    def bind(self, context: DraftContext) -> None:
        """Take what the draft needs from the engine; called once, after the target is loaded."""

    @abstractmethod
    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        """Return up to min(k, limit) tokens for each sequence; an empty list declines."""

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Hear how many drafts of the last step were accepted."""

    def drop(self, key: int) -> None:
        """Forget a finished or preempted sequence."""


class ParallelStrategy(Plugin):
    """Place a model on ranks and move data between them.

    `place` runs in the parent; the rest runs in every rank after `connect`. `single` is the
    strategy of one rank: its collectives return their input.
    """

    @abstractmethod
    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        """Cut the model into ranks, the same way whenever asked. Raises ValueError when it cannot be cut."""

    @abstractmethod
    def connect(self, context: RankContext) -> None:
        """Join the other ranks. Raises TimeoutError when one does not appear."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x` over all ranks."""

    @abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the `x` of all ranks, joined along `dim` in rank order."""

    @abstractmethod
    def send(self, x: torch.Tensor, rank: int) -> None:
        """Send `x` to `rank`, in order. Raises RuntimeError when that rank is lost."""

    @abstractmethod
    def recv(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        """Fill `x` with what `rank` sent and return it. Raises RuntimeError when that rank is lost."""

    def close(self) -> None:
        """Leave the group."""


# --- services handed to plugins ---------------------------------------------------------------


class Workspace(Protocol):
    """Scratch and output memory with fixed addresses per shape bucket."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the buffer of this name and at least this shape; the same one on every call."""
        ...


class DraftContext(Protocol):
    """What a draft model may ask of the engine."""

    @property
    def spec(self) -> ModelSpec:
        """The target model."""
        ...

    @property
    def device(self) -> str: ...

    def load(self, model: str) -> Any:
        """Load a second model from the store. Raises ValueError when it does not fit."""
        ...

    def layers(self, count: int) -> Any:
        """Return the target's first `count` layers as a decoder (self-speculation)."""
        ...


@dataclass(frozen=True, slots=True)
class RankContext:
    """How one rank finds the others."""

    rank: int
    world: int
    rendezvous: str
    """torch.distributed init method, e.g. `file:///run/.../rendezvous`."""
    timeout_s: float
    options: Mapping[str, object]
