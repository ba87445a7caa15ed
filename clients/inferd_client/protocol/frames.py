"""Frames: which messages a socket carries, and their encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from .base import Reply, Request
from .codes import HEADER, MAGIC, MAJOR, MAX_FRAME, Caps, Code
from .cost import MetricsReply
from .replies import Accepted, Done, Error, Ok, Pong, Progress, Rendered, Tokenized, Tokens, Welcome
from .requests import (
    Cancel,
    Drain,
    Generate,
    Hello,
    Load,
    Metrics,
    Models,
    Ping,
    Plugins,
    Render,
    Status,
    Tokenize,
    Traffic,
    Unload,
)
from .status import ModelEvent, ModelsReply, PluginsReply, StatusReply
from .traffic import TrafficReply

T = TypeVar("T")

Data = Hello | Ping | Generate | Tokenize | Render
Control = Hello | Ping | Cancel | Status | Models | Load | Unload | Plugins | Traffic | Metrics | Drain
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
    | TrafficReply
    | MetricsReply
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
        raise FrameError(str(error), Code.INVALID_PARAM, field_of(str(error))) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise FrameError(f"undecodable message: {error}") from None


def field_of(text: str) -> str | None:
    """Find the field a msgspec message speaks of: its path, or the unknown name it quotes."""
    if "`$" in text:  # at `$.a.b`, or at `key` in `$.a.b`
        return text.rsplit("`$", 1)[1].rstrip("`").lstrip(".") or None
    return text.split("`")[1] if text.count("`") >= 2 else None


def request_id_of(frames: Sequence[bytes]) -> str | None:
    """Dig the `id` out of a message that failed to decode, so that its sender can be answered."""
    try:
        raw = msgspec.msgpack.decode(frames[-1]) if frames else None
    except (msgspec.MsgspecError, RecursionError, ValueError):  # hostile bytes: no id is the answer
        return None
    value = raw.get("id") if isinstance(raw, dict) else None
    return value if isinstance(value, str) and len(value) <= Caps.ID_CHARS else None
