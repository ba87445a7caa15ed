"""Messages between an engine worker (rank 0) and the processes of its other ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np

from inferd.engine.batch import Batch, SlotInit, StepOutput
from inferd.engine.settings import WorkerSettings
from inferd.engine.shape import EngineShape
from inferd.link import Msg
from inferd.plugin.manifest import ManifestEntry
from inferd.plugin.types import StepCounts

# --- worker to rank ---------------------------------------------------------------------------


class RankStart(Msg, tag="rank_start"):
    """Load this rank's share of the model."""

    settings: WorkerSettings
    rank: int
    shape: EngineShape
    """The worker's: a rank does not size itself."""
    manifest: tuple[ManifestEntry, ...]


class RankConnect(Msg, tag="rank_connect"):
    """All ranks are loaded: join them."""

    rendezvous: str
    timeout_s: float


class RankStep(Msg, tag="rank_step"):
    """One `Batch`; arrays as (dtype, shape, bytes) by field name."""

    counts: StepCounts
    arrays: dict[str, tuple[str, tuple[int, ...], bytes]]
    prompt_rows: tuple[tuple[int, int], ...]
    enter: list[SlotInit]
    leave: list[int]


RankIn = RankStart | RankConnect | RankStep

# --- rank to worker ---------------------------------------------------------------------------


class RankProgress(Msg, tag="rank_progress"):
    phase: str
    done: int
    total: int


class RankLoaded(Msg, tag="rank_loaded"):
    weight_bytes: int
    weights_note: str


class RankConnected(Msg, tag="rank_connected"):
    pass


class RankOutput(Msg, tag="rank_output"):
    """From the rank that samples, one for each step."""

    output: StepOutput


class RankFailed(Msg, tag="rank_failed"):
    """The rank ends after this."""

    message: str


RankOut = RankProgress | RankLoaded | RankConnected | RankOutput | RankFailed

rank_in = msgspec.msgpack.Decoder(RankIn)
rank_out = msgspec.msgpack.Decoder(RankOut)


def pack_batch(batch: Batch) -> RankStep:
    """Copy a batch, whose buffers are used again, into a message."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return RankStep(
        counts=batch.counts,
        arrays={name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()},
        prompt_rows=batch.prompt_rows,
        enter=batch.enter,
        leave=batch.leave,
    )


def unpack_batch(step: RankStep) -> Batch:
    """Return the batch of a message."""
    arrays: dict[str, Any] = {
        name: np.frombuffer(bytearray(data), dtype).reshape(shape) for name, (dtype, shape, data) in step.arrays.items()
    }
    return Batch(counts=step.counts, prompt_rows=step.prompt_rows, enter=step.enter, leave=step.leave, **arrays)
