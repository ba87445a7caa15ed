"""Data types that cross the plugin contracts. No torch at import time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

Kind = Literal["architecture", "parallel", "quantizer", "kv", "attention", "draft"]
"""Plugin kinds, in the order in which the resolver chooses them."""

KINDS: tuple[Kind, ...] = ("architecture", "parallel", "quantizer", "kv", "attention", "draft")

Exactness = Literal["bit", "token", "distribution", "approximate"]
"""What a lever promises about its output, strongest first."""

Form = Literal["dense", "u4_group", "i8_group", "i8_channel", "fp8", "fp4_block"]
"""Packed weight forms; linear kernels are looked up by (form, device)."""

KVFormat = Literal["fp32", "bf16", "fp16", "int8", "fp8"]


# --- model description ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of one layer kind. Key names follow Hugging Face `rope_parameters`."""

    theta: float
    dim: int
    """Number of rotated channels of a head (the first `dim`)."""
    kind: Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"] = "default"
    factor: float = 1.0
    original_context: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    freq_factors: tuple[float, ...] | None = None
    """Divisor of each of the dim / 2 frequencies, over any `kind` (GGUF tensor `rope_freqs.weight`)."""


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention of one layer: query head h reads KV head h // (heads / kv_heads)."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: str | None = "main"
    """Key into `ModelSpec.ropes`; None = no rotary embedding."""
    scale: float = 0.0
    """Multiplier of q.k; never 0 in a finished spec."""
    window: int | None = None
    """A query sees itself and the window - 1 positions before it; None = all."""
    softcap: float | None = None
    qk_norm: bool = False
    sinks: bool = False
    qkv_bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention of one layer (DeepSeek-V2 paper, section 2.1)."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    rope: str = "main"
    scale: float = 0.0


Attention = Gqa | Mla


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Gated feed-forward block: down(act(gate(x)) * up(x))."""

    inner: int
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention: Attention
    mlp: DenseMlp


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the one `Decoder` needs to know about a model; nothing about where it came from."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    ropes: Mapping[str, RopeSpec]
    norm_eps: float
    trained_context: int
    tied_embeddings: bool
    norm_offset: float = 0.0
    """Added to every RMSNorm weight (1.0 where checkpoints store weight - 1)."""
    embedding_scale: float = 1.0
    logit_softcap: float | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)


class TensorMeta(NamedTuple):
    """One tensor of a checkpoint before it is read: enough to choose a packed form."""

    name: str
    shape: tuple[int, ...]
    """Logical shape, outermost first (out, in for a linear weight)."""
    dtype: str
    """Storage type in the file: a safetensors dtype (`F32 F16 BF16`) or a GGUF type (`Q4_1`, ...)."""


class TensorRule(NamedTuple):
    """Where one parameter of the `Decoder` comes from in a checkpoint."""

    target: str
    """Parameter name in `Decoder`, e.g. `layers.3.attn.q.weight`; empty = known but no parameter
    (already read into the spec, or derived from it)."""
    source: str
    unpermute_heads: int = 0
    """Non-zero: rows of each of this many heads were interleaved by the llama GGUF converter."""
    optional: bool = False


# --- weights ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in one of few forms, device-free. All planes are contiguous CPU tensors.

    dense      planes: weight [*shape]
    u4_group   planes: codes uint8 [N, K/2] (low nibble = even column), scales [N, K/group],
               optional mins [N, K/group]; value = (code - zero) * scale (+ min), code in 0..15
    i8_group   planes: codes int8 [N, K], scales [N, K/group], optional mins [N, K/group];
               value = (code - zero) * scale (+ min)
    i8_channel planes: codes int8 [N, K], scales [N]
    fp8        planes: codes float8_e4m3fn [N, K], scales [N] or [N/block, K/block]
    fp4_block  planes: codes uint8 [N, K/2], scales [N, K/group]

    Scales and mins keep the narrowest float type that holds them exactly.
    """

    form: Form
    shape: tuple[int, ...]
    planes: Mapping[str, torch.Tensor]
    group: int = 0
    """Columns that share a scale; 0 where the form has no groups."""
    zero: int = 0
    """Code that stands for 0 in u4_group and i8_group, e.g. 8 for symmetric 4 bits."""
    permutation: torch.Tensor | None = None
    """Input column order (activation-ordered GPTQ); None = identity."""

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.planes.values())


# --- KV ---------------------------------------------------------------------------------------


class KVPlane(NamedTuple):
    """One tensor kept per token: heads x width elements (`k` and `v` for Gqa, one latent for Mla)."""

    name: str
    heads: int
    width: int


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share block tables: same planes and window."""

    layers: tuple[int, ...]
    planes: tuple[KVPlane, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How an attention backend stores one KV group.

    Each layer of the group owns, per plane, one tensor [num_blocks, block_size, heads, width] of `format`; `scales`
    planes hold one float a token and head for the 8-bit formats.
    """

    group: KVGroup
    format: KVFormat
    block_size: int
    scales: tuple[KVPlane, ...] = ()
    by_block: bool = False
    """A block of all layers lies in one piece, so that a pool takes the memory of its blocks in use, on pages of any
    size: of each tensor only single blocks are contiguous. For backends that take their distance from the strides."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers of the group."""
        width = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}[self.format]
        values = sum(p.heads * p.width for p in self.group.planes) * width
        scales = sum(p.heads * p.width for p in self.scales) * 4
        return (values + scales) * self.block_size * len(self.group.layers)


LayerKV = Mapping[str, "torch.Tensor"]
"""The KV tensors of one layer by plane name."""


class KVGroupSize(NamedTuple):
    """What a KV manager is told of a group: how many blocks, and the window if any."""

    num_blocks: int
    window: int | None


class KVStats(NamedTuple):
    total_blocks: int
    free_blocks: int
    """Blocks that can be handed out now, cached ones included."""
    cached_blocks: int
    """Free blocks that still hold a reusable prefix."""
    queries: int
    """Prompt tokens looked up so far."""
    hits: int
    """Prompt tokens found so far."""


# --- a step -----------------------------------------------------------------------------------


class StepCounts(NamedTuple):
    """Sequences of each phase in a step; rows come in the order decode, verify, prefill."""

    decode: int
    verify: int
    prefill: int


@dataclass(slots=True)
class StepInputs:
    """Fixed buffers of one shape bucket on the device; per-step values are copied into them.

    T tokens, B sequences, G KV groups, M blocks a table, R sampled rows (the real counts of this
    step; the buffers may be longer). Offsets are int32, positions int64, block ids int32.
    """

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    cu_seqlens: torch.Tensor  # [B + 1] query offsets
    context_lens: torch.Tensor  # [B] keys a sequence has after this step
    block_tables: torch.Tensor  # [G, B, M]
    slots: torch.Tensor  # [G, T] block * block_size + offset where a token's KV goes
    sample_rows: torch.Tensor  # [R] rows of T whose logits are needed
    query_lens: Sequence[int] = ()  # host copies for plan(); never read inside a capture
    context_lens_host: Sequence[int] = ()
    counts: StepCounts = StepCounts(0, 0, 0)


class Qkv(NamedTuple):
    """Projections of one layer before norm and rotary embedding."""

    q: torch.Tensor  # [T, heads, head_dim]
    k: torch.Tensor  # [T, kv_heads, head_dim]
    v: torch.Tensor  # [T, kv_heads, head_dim]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Frozen description of one attention layer, built once at load and handed to a backend."""

    index: int
    """Layer number in the model."""
    group: int
    """KV group number."""
    spec: Attention
    cos: torch.Tensor | None
    sin: torch.Tensor | None
    """Rope tables [context, dim], float32, halves duplicated (rotate-half convention)."""
    norm_eps: float = 1e-6
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


# --- parallel ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """What one rank holds: a run of layers, and which ends of the model."""

    rank: int
    device: str
    layers: tuple[int, ...]
    embeds: bool
    """Holds the token embedding (first stage)."""
    samples: bool
    """Holds the final norm and lm_head, and samples (last stage)."""
    shard: int = 0
    shards: int = 1
    """Slice of each matrix for tensor-parallel strategies."""


@dataclass(frozen=True, slots=True)
class Placement:
    ranks: tuple[RankPlacement, ...]

    @property
    def world(self) -> int:
        return len(self.ranks)


# --- drafts -----------------------------------------------------------------------------------


class DraftSequence(NamedTuple):
    """A decoding sequence as a draft model sees it."""

    key: int
    tokens: Sequence[int]
    """Prompt and output so far; must not be changed."""
    limit: int
    """Most tokens worth proposing (room in the context, max_tokens)."""


class DraftOutcome(NamedTuple):
    key: int
    drafted: int
    accepted: int


# --- probing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What a plugin may look at when asked whether it can serve; earlier choices are filled in."""

    architecture_name: str
    """`llama`, `qwen2`... as the checkpoint declares it."""
    device: str
    dtype: str
    """Compute type: fp32, bf16, fp16."""
    spec: ModelSpec | None = None
    """Known once the architecture is chosen."""
    source: Literal["hf", "gguf"] = "hf"
    weight_types: frozenset[str] = frozenset()
    """Storage types of the linear weights."""
    kv_format: KVFormat = "fp32"
    max_draft: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    chosen: Mapping[Kind, str] = field(default_factory=dict)


class Accept(NamedTuple):
    note: str = ""


class Reject(NamedTuple):
    reasons: tuple[str, ...]


Verdict = Accept | Reject
