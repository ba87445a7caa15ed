"""The one model definition: a decoder-only transformer described by a `ModelSpec`.

Read from the top: `Decoder`, `Block`, then the layers they are made of. What differs between
architectures is data in the spec; how a matrix is stored is the business of its linear kernel; how keys
and values are kept and attended over is the attention backend's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inferd.plugin.types import Qkv

if TYPE_CHECKING:
    from inferd.plugin.contracts import AttentionBackend
    from inferd.plugin.types import AttentionLayer, LayerKV, ModelSpec, RankPlacement, StepInputs
    from inferd_kernels.linear import LinearKernel, Rounding
    from inferd_kernels.norms import Gate, Norm


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
    rounds_activations: tuple[Rounding, ...] = ()
    """To what matrices round the rows they multiply: outputs then come close to those of the weights, not equal."""
    eager_because: str = ""
    """Why a step of this decoder cannot be recorded; empty = it can."""

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
        return self.finish(*self.attend(inputs, hidden, kv, backend, plan))

    def attend(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor | None,
        kv: Mapping[int, LayerKV],
        backend: AttentionBackend,
        plan: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layers up to the last one's attention; return it [T, heads x head_dim] and the residual [T, hidden].

        All keys and values are then written: what is left concerns each row alone, and only rows that are asked for.
        """
        if hidden is None:
            assert self.embed is not None
            hidden = self.embed(inputs.token_ids)
        *blocks, last = self.blocks
        for block in blocks:
            hidden = block(hidden, inputs, kv[block.attention.layer.index], backend, plan)
        return last.attend(hidden, inputs, kv[last.attention.layer.index], backend, plan), hidden

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return the hidden state [R, hidden] of rows of what `attend` returned."""
        return self.blocks[-1].finish(attended, residual)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return float32 logits [R, vocab] of rows of the last hidden state [R, hidden]; `out` is where to put them."""
        logits = self.capped(self._project(hidden))
        return logits.float() if out is None else out.copy_(logits)

    def raw_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits before the soft cap: all of it can be recorded."""
        return self._project(hidden).float()

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits.float() / cap) * cap

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.norm is not None
        assert self.head is not None
        return self.head(self.norm(hidden))


@dataclass(slots=True)
class Block:
    attn_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: Mlp

    def __call__(
        self, x: torch.Tensor, inputs: StepInputs, kv: LayerKV, backend: AttentionBackend, plan: Any
    ) -> torch.Tensor:
        return self.finish(self.attend(x, inputs, kv, backend, plan), x)

    def attend(
        self, x: torch.Tensor, inputs: StepInputs, kv: LayerKV, backend: AttentionBackend, plan: Any
    ) -> torch.Tensor:
        """Write keys and values of x [T, hidden] and return its attention [T, heads x head_dim]."""
        return self.attention(self.attn_norm(x), inputs, kv, backend, plan)

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = self.attention.out(attended, residual)
        return self.mlp(self.mlp_norm(x), x)


@dataclass(slots=True)
class SelfAttention:
    layer: AttentionLayer
    qkv: FusedLinear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int

    def __call__(self, x: Any, inputs: StepInputs, kv: LayerKV, backend: AttentionBackend, plan: Any) -> torch.Tensor:
        """Return the attention of x, which is in the input format of `qkv`, for `out` to multiply."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [T, heads + 2 kv_heads, head_dim]
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q = backend.write(self.layer, Qkv(q, k, v), kv, plan, inputs)
        attended = backend.attend(self.layer, q, kv, plan)  # [T, heads, head_dim]
        return attended.reshape(x.shape[0], -1)


@dataclass(slots=True)
class Mlp:
    gate_up: FusedLinear
    down: Linear
    gate: Gate
    """Writes the format that `down` reads."""

    def __call__(self, x: Any, residual: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate(self.gate_up(x)), residual)


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

    rows: int = 0
    """Of the weight: the columns of what it returns."""

    def __call__(self, x: Any, residual: torch.Tensor | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.kernel.linear(x, self.weight, self.bias, residual=residual, out=out)


@dataclass(slots=True)
class FusedLinear:
    """Matrices that read the same input: one multiplication where their forms allow it."""

    parts: list[Linear]

    def __call__(self, x: Any) -> torch.Tensor:
        if len(self.parts) == 1:
            return self.parts[0](x)
        out = self.parts[0].kernel.empty(x.shape[0], sum(part.rows for part in self.parts), x)
        start = 0
        for part in self.parts:
            part(x, out=out[:, start : start + part.rows])
            start += part.rows
        return out


@dataclass(slots=True)
class Embedding:
    kernel: LinearKernel
    table: Any
    """What the kernel's `prepare_rows` made."""
    scale: float
    dtype: torch.dtype

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.kernel.rows(self.table, ids, self.dtype, self.scale)
