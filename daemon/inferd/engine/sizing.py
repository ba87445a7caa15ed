"""Derive an `EngineShape` from configuration, model and memory. Pure arithmetic, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferd.engine.shape import EngineShape
from inferd.link import PROCESS_BYTES
from inferd.load.errors import LoadError

if TYPE_CHECKING:
    from inferd.config.schema import Engine
    from inferd.plugin.types import KVLayout, ModelSpec, TensorMeta

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
DEFAULT_CHUNK = 512
DEFAULT_SEQUENCES = 64
ONEDNN_BYTES = 128 << 20
"""Compiled products that oneDNN keeps, where torch multiplies on the CPU: 256 of about half a MiB."""
FORM_BYTES: Mapping[str, float] = {"u4_group": 0.5 + 8 / 32, "i8_group": 1 + 4 / 16}
"""Most bytes that a value takes in a packed form, with scales and minimums in float32; in float16 it is less."""
STORED_BYTES: Mapping[str, float] = {"F32": 4, "F16": 2, "BF16": 2}
HOST_POOL_BYTES = 2 << 30
"""KV pool on the host unless configured: a workstation's memory is not ours alone."""
DISPLAY_SHARE, HEADLESS_SHARE, LEAST_RESERVE = 0.08, 0.02, 512 << 20
"""Of a GPU's memory, left to the desktop or to nobody in particular: also for allocations that nothing foresees."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What a worker may use, and what is taken before the KV pool."""

    grant: int
    """Bytes from the front's ledger; 0 = no limit was given."""
    weights: int
    activations: int
    libraries: int = 0
    """What libraries keep that compute beside our kernels."""
    process: int = PROCESS_BYTES
    """Of the worker's process itself."""
    measured: bool = False
    """What is taken was measured on the device, not estimated."""
    reserve: int = 0
    """What the device has and the grant leaves out; for messages."""

    @property
    def for_kv(self) -> int | None:
        """Bytes left for KV blocks; None = unlimited."""
        if not self.grant:
            return None
        return max(0, self.grant - self.weights - self.activations - self.libraries - self.process)


def weight_bytes(tensors: Iterable[tuple[TensorMeta, str]], dtype: str, *, native: bool) -> int:
    """Estimate the bytes of all weights in memory, from above; the tensors come with the forms they are packed into.

    Native kernels compute on forms as they are, and look embedding rows up in the matrix they multiply by. Elsewhere
    matrices are dequantised to `dtype`, and the embedding table stays beside them in its form.
    """
    total, table = 0.0, 0.0
    for meta, form in tensors:
        values = math.prod(meta.shape)
        stored = values * FORM_BYTES.get(form, STORED_BYTES.get(meta.dtype, 4))
        if len(meta.shape) < 2:
            total += 4 * values
        elif native:
            total += stored
        else:
            total += values * DTYPE_BYTES[dtype]
            table = max(table, stored)
    return int(total + table)


def choose_reserve(configured: int, total: int, display: bool | None) -> tuple[int, str]:
    """Return how many of a GPU's `total` bytes others may have, and why. A `display` of None: nobody knows."""
    if configured:
        return configured, "config"
    share, why = {
        True: (DISPLAY_SHARE, "a display or graphics run on the GPU"),
        False: (HEADLESS_SHARE, "no display runs on the GPU"),
        None: (DISPLAY_SHARE, "the driver does not say whether a display runs on the GPU"),
    }[display]
    return max(LEAST_RESERVE, int(total * share)), why


def choose_depth(overlap: str, *, drafting: bool, retains: bool, ranks: int, queued: bool) -> tuple[int, str]:
    """Return how many steps may be in flight, and what decides that.

    `retains`: the KV manager keeps what is computed; `queued`: the device takes work before earlier work is done.
    """
    if overlap == "off":
        return 1, "config"
    if ranks > 1:
        return 1, "several ranks"
    if not retains:
        return 1, "the KV manager keeps nothing between steps"
    if drafting:
        return 1, "drafts need the tokens before them"
    if overlap == "on":
        return 2, "config"
    return (2, "the device works by itself") if queued else (1, "the host computes")


def activation_bytes(token_budget: int, hidden: int, inner: int, vocab: int, sampled_rows: int) -> int:
    """Upper estimate of the live activations of one step, in float32."""
    per_token = 4 * (6 * hidden + 3 * inner)
    return token_budget * per_token + 3 * sampled_rows * vocab * 4


def derive_shape(
    config: Engine,
    spec: ModelSpec,
    layouts: Sequence[KVLayout],
    budget: MemoryBudget,
    *,
    drafting: bool,
    on_host: bool,
    cores: tuple[int, str] = (1, "default"),
) -> EngineShape:
    """Choose every size and say where it came from. `cores` may compute on the host, with what limits them.

    Raises LoadError with the numbers, and the context that would fit, when not even one sequence of
    the asked context has room.
    """
    origin: dict[str, str] = {}

    def pick(name: str, configured: int, fallback: int, source: str) -> int:
        origin[name] = "config" if configured else source
        return configured or fallback

    context = pick("max_context", config.max_context, spec.trained_context, "model")
    sequences = pick("max_sequences", config.max_sequences, DEFAULT_SEQUENCES, "default")
    max_draft = config.max_draft if drafting else 0
    origin["max_draft"] = "config" if drafting else "no draft plugin"
    chunk = pick("chunk", config.chunk, min(DEFAULT_CHUNK, context), "default")
    token_budget = pick(
        "token_budget", config.token_budget, max(chunk, sequences * (1 + max_draft)), "chunk and sequences"
    )
    if token_budget < sequences * (1 + max_draft):
        raise LoadError(
            f"engine.token_budget {token_budget} is below max_sequences x (1 + max_draft) = "
            f"{sequences * (1 + max_draft)}: lower engine.max_sequences or raise the budget"
        )
    threads = pick("threads", config.threads, *cores) if on_host else 0
    origin["block_size"] = "config"
    shape = EngineShape(
        max_context=context,
        max_sequences=sequences,
        token_budget=token_budget,
        chunk=min(chunk, token_budget),
        block_size=config.block_size,
        num_blocks=0,
        max_draft=max_draft,
        threads=threads,
        origin=origin,
    )
    return fit_pool(shape, config, layouts, budget, on_host=on_host)


def fit_pool(
    shape: EngineShape, config: Engine, layouts: Sequence[KVLayout], budget: MemoryBudget, *, on_host: bool
) -> EngineShape:
    """Give a shape the pool that memory allows, and a shorter context where not even one sequence of it has room.

    Raises LoadError with the numbers, and what would fit, where the sizes were asked for or too little is left.
    """
    context, origin = shape.max_context, dict(shape.origin)
    block_bytes = sum(layout.bytes_per_block for layout in layouts)
    blocks, origin["num_blocks"] = _num_blocks(
        config, shape.max_blocks, shape.max_sequences, block_bytes, budget, on_host
    )
    room = budget.for_kv
    if budget.measured and room is not None and blocks * block_bytes > room:
        _refuse_pool(blocks, block_bytes, room, budget)
    if blocks < shape.max_blocks:
        fits, need, have = blocks * config.block_size, shape.max_blocks * block_bytes, blocks * block_bytes
        if config.max_context or config.kv_blocks or config.kv_bytes or fits < min(256, context):
            _refuse(context, fits, need, have, budget)
        origin["max_context"] = f"memory: the model's {context} do not fit"
        context = fits
    return replace(shape, max_context=context, num_blocks=blocks, origin=origin)


def _num_blocks(
    config: Engine, per_sequence: int, sequences: int, block_bytes: int, budget: MemoryBudget, on_host: bool
) -> tuple[int, str]:
    if config.kv_blocks:
        return config.kv_blocks, "config"
    if config.kv_bytes:
        return config.kv_bytes // block_bytes, "config kv_bytes"
    useful = per_sequence * sequences
    room = budget.for_kv
    cap = max(HOST_POOL_BYTES, per_sequence * block_bytes) if on_host or room is None else room
    allowed = cap if room is None else min(cap, room)
    taken = "measured free memory" if budget.measured else "memory grant"
    if allowed >= useful * block_bytes:
        return useful, "max_sequences x max_context"
    return allowed // block_bytes, "host default" if on_host and (room is None or room >= cap) else taken


def _refuse_pool(blocks: int, block_bytes: int, room: int, budget: MemoryBudget) -> None:
    raise LoadError(
        f"the KV pool that is configured ({blocks} blocks) takes {blocks * block_bytes >> 20} MiB, {room >> 20} MiB "
        f"are left of {budget.grant >> 20} MiB ({_taken(budget, 'steps')}): set "
        f"engine.kv_blocks to {room // block_bytes} or less, or to 0 to take what fits"
    )


def _refuse(context: int, fits: int, need: int, have: int, budget: MemoryBudget) -> None:
    mib = 1 << 20
    shorter = f"set engine.max_context to {fits} or less, " if fits else ""
    narrower = f"keep KV in 8 bits (engine.kv_format, on a GPU; about {2 * fits} tokens), " if fits else ""
    raise LoadError(
        f"one sequence of {context} tokens needs {need // mib} MiB of KV, {have // mib} MiB are left of "
        f"{budget.grant // mib} MiB ({_taken(budget, 'activations')}): "
        f"{shorter}lower engine.max_sequences, {narrower}use a smaller or further quantized model, or "
        f"{'lower engine.device_reserve' if budget.reserve else 'raise daemon.memory_limit'}"
    )


def _taken(budget: MemoryBudget, steps: str) -> str:
    reserve = f"; {budget.reserve >> 20} MiB more are kept free: engine.device_reserve" if budget.reserve else ""
    return f"weights {budget.weights >> 20}, {steps} {budget.activations >> 20}{reserve}"
