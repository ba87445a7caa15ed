"""What a step takes: floating operations of prefill, bytes that decode reads, and whose they are. No torch.

Operations are counted as in the papers on scaling (2 for each weight of a matrix and token) plus those of
attention over the real contexts; bytes are those of all weights once a step and of the KV in view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from inferd.plugin.types import Gqa

if TYPE_CHECKING:
    from inferd.engine.batch import Row
    from inferd.plugin.types import Attention, KVLayout, ModelSpec


class Scan(NamedTuple):
    """An amount for each position in view of a token, over all layers that share a window."""

    amount: float
    window: int | None = None

    def of(self, context: int) -> float:
        """Return the amount of one token that sees `context` positions, itself included."""
        return self.amount * (context if self.window is None else min(context, self.window))

    def over(self, start: int, count: int) -> float:
        """Return the amount of `count` tokens from position `start` on."""
        if self.window is None or start + count <= self.window:
            return self.amount * count * (2 * start + count + 1) / 2
        growing = max(0, self.window - start)
        return self.amount * (growing * (2 * start + growing + 1) / 2 + (count - growing) * self.window)


@dataclass(frozen=True, slots=True)
class Demand:
    """Of one loaded model. All zero where nothing is known."""

    flops_per_token: float = 0.0
    flops_per_sample: float = 0.0
    """Of a row whose logits are computed."""
    attention_flops: tuple[Scan, ...] = ()
    weight_bytes: int = 0
    """Read by every step that decodes."""
    kv_bytes: tuple[Scan, ...] = ()

    def prefill_flops(self, rows: Iterable[Row]) -> float:
        """Return the operations of prefill rows."""
        total = 0.0
        for row in rows:
            total += self.flops_per_token * row.num_tokens + self.flops_per_sample * row.samples
            total += sum([scan.over(row.start, row.num_tokens) for scan in self.attention_flops])
        return total

    def kv_reads(self, rows: Sequence[Row], num_steps: int = 1) -> list[float]:
        """Return the bytes of KV that each decode or verify row has in view, in all its steps together."""
        if num_steps > 1:
            return [sum([scan.over(row.start, num_steps) for scan in self.kv_bytes]) for row in rows]
        contexts = [row.start + row.num_tokens for row in rows]
        if len(self.kv_bytes) == 1 and self.kv_bytes[0].window is None:
            amount = self.kv_bytes[0].amount
            return [amount * context for context in contexts]
        return [sum([scan.of(context) for scan in self.kv_bytes]) for context in contexts]


def demand_of(spec: ModelSpec, layouts: Sequence[KVLayout], weight_bytes: int) -> Demand:
    """Derive what steps of a model take. `weight_bytes` are those of all its weights as loaded."""
    matrices = sum(_matrices(spec.hidden_size, layer.attention) for layer in spec.layers)
    matrices += sum(3 * spec.hidden_size * layer.mlp.inner for layer in spec.layers)
    embedding = spec.hidden_size * spec.vocab_size
    held = matrices + embedding * (1 if spec.tied_embeddings else 2)
    read = held if spec.tied_embeddings else held - embedding
    return Demand(
        flops_per_token=2.0 * matrices,
        flops_per_sample=2.0 * embedding,
        attention_flops=tuple(
            Scan(sum(_pair_flops(spec.layers[index].attention) for index in layout.group.layers), layout.group.window)
            for layout in layouts
        ),
        weight_bytes=weight_bytes * read // held,
        kv_bytes=tuple(Scan(layout.bytes_per_block / layout.block_size, layout.group.window) for layout in layouts),
    )


def _matrices(hidden: int, attention: Attention) -> int:
    """Count the weights of the projections around an attention."""
    if isinstance(attention, Gqa):
        return hidden * attention.head_dim * (2 * attention.heads + 2 * attention.kv_heads)
    queries = attention.heads * (attention.nope_dim + attention.rope_dim)
    rank = attention.q_lora_rank
    query = hidden * queries if rank is None else rank * (hidden + queries)
    latent = hidden * (attention.kv_lora_rank + attention.rope_dim)
    expand = attention.kv_lora_rank * attention.heads * (attention.nope_dim + attention.value_dim)
    return query + latent + expand + attention.heads * attention.value_dim * hidden


def _pair_flops(attention: Attention) -> int:
    """Operations of one query token on one key position: q.k and the weighted sum of v."""
    if isinstance(attention, Gqa):
        return 4 * attention.heads * attention.head_dim
    return 2 * attention.heads * (attention.nope_dim + attention.rope_dim + attention.value_dim)
