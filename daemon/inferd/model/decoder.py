"""The one model definition: a decoder-only transformer described by a `ModelSpec`.

Read from the top: `Decoder`, `Block`, then the layers they are made of. What differs between
architectures is data in the spec; how a matrix is stored is the business of its linear kernel; how keys
and values are kept and attended over is the attention backend's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from inferd.plugin.types import Qkv

if TYPE_CHECKING:
    from inferd.plugin.contracts import AttentionBackend
    from inferd.plugin.types import AttentionLayer, LayerKV, ModelSpec, RankPlacement, StepInputs
    from inferd_kernels.linear import LinearKernel
    from inferd_kernels.norms import Norm

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(slots=True, kw_only=True)
class Decoder:
    """A whole model, or the run of its layers that one rank holds."""

    spec: ModelSpec
    """Of the whole model, as computed (GQA expanded where that was asked for)."""
    placement: RankPlacement
    dtype: torch.dtype
    embed: Embedding | None
    """None on a rank that does not start the model."""
    blocks: list[Block]
    norm: RmsNorm | None
    head: Linear | None
    """None on a rank that does not end the model."""
    weight_bytes: int = 0
    weights_note: str = ""

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        return [block.attention.layer for block in self.blocks]

    def forward(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor | None,
        kv: Mapping[int, LayerKV],
        backend: AttentionBackend,
        plan: Any,
    ) -> torch.Tensor:
        """Run this rank's layers and return the hidden state [T, hidden].

        `hidden` is what the rank before sent; None on the first. `kv` holds the cache of each layer.
        """
        if hidden is None:
            assert self.embed is not None
            hidden = self.embed(inputs.token_ids)
        for block in self.blocks:
            hidden = block(hidden, inputs, kv[block.attention.layer.index], backend, plan)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, vocab] of rows of the last hidden state [R, hidden]."""
        assert self.norm is not None
        assert self.head is not None
        logits = self.head(self.norm(hidden)).float()
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


@dataclass(slots=True)
class Block:
    attn_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: Mlp

    def __call__(
        self, x: torch.Tensor, inputs: StepInputs, kv: LayerKV, backend: AttentionBackend, plan: Any
    ) -> torch.Tensor:
        x = x + self.attention(self.attn_norm(x), inputs, kv, backend, plan)
        return x + self.mlp(self.mlp_norm(x))


@dataclass(slots=True)
class SelfAttention:
    layer: AttentionLayer
    qkv: FusedLinear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int

    def __call__(
        self, x: torch.Tensor, inputs: StepInputs, kv: LayerKV, backend: AttentionBackend, plan: Any
    ) -> torch.Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [T, heads + 2 kv_heads, head_dim]
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q = backend.write(self.layer, Qkv(q, k, v), kv, plan, inputs)
        attended = backend.attend(self.layer, q, kv, plan)  # [T, heads, head_dim]
        return self.out(attended.reshape(x.shape[0], -1))


@dataclass(slots=True)
class Mlp:
    gate_up: FusedLinear
    down: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate).mul_(up))


@dataclass(slots=True)
class RmsNorm:
    weight: torch.Tensor
    eps: float
    norm: Norm
    """Writes the format that the linear layer after it reads."""

    def __call__(self, x: torch.Tensor) -> Any:
        return self.norm(x, self.weight, self.eps)


@dataclass(slots=True)
class Linear:
    kernel: LinearKernel
    weight: Any
    """What the kernel's `prepare` made."""
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel.linear(x, self.weight, self.bias)


@dataclass(slots=True)
class FusedLinear:
    """Matrices that read the same input: one multiplication where their forms allow it."""

    parts: list[Linear]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], dim=-1)


@dataclass(slots=True)
class Embedding:
    kernel: LinearKernel
    table: Any
    """What the kernel's `prepare_rows` made."""
    scale: float
    dtype: torch.dtype

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.kernel.rows(self.table, ids, self.dtype)
        return rows if self.scale == 1.0 else rows * self.scale
