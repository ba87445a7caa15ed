"""Frames of protocol 1.0, kept as bytes: today's code reads them and still writes them."""

from __future__ import annotations

import json

import msgspec
import pytest

from inferd_client import protocol as p

from .golden_messages import GOLDEN, SIDES
from .wire_types import structs

RECORDED = json.loads(GOLDEN.read_text())
CASES = [(side, i) for side, entries in RECORDED.items() for i in range(len(entries))]


@pytest.mark.parametrize(("side", "index"), CASES)
def test_golden_frames_are_read_and_still_written(side, index):
    entry = RECORDED[side][index]
    frames = [bytes.fromhex(frame) for frame in entry["frames"]]
    messages, decoder = SIDES[side]
    assert p.decode(frames, decoder) == messages[index]
    assert p.encode(messages[index]) == frames


def test_golden_frames_cover_every_message_kind_and_field():
    """A struct or field that no golden frame sets could change unseen."""
    set_fields: dict[str, set[str]] = {name: set() for name in structs()}

    def note(value: object) -> None:
        if isinstance(value, msgspec.Struct):
            for field in msgspec.structs.fields(value):
                item = getattr(value, field.name)
                if field.required or item != field.default:
                    set_fields[type(value).__name__].add(field.name)
                note(item)
        elif isinstance(value, list | tuple):
            for item in value:
                note(item)
        elif isinstance(value, dict):
            note(list(value.values()))

    for messages, _ in SIDES.values():
        note(messages)
    unset = {name: set(kind.__struct_fields__) - set_fields[name] for name, kind in structs().items()}
    unset["Hello"] -= {"major", "minor"}  # constants of the version
    assert {name: fields for name, fields in unset.items() if fields} == {}


def test_the_header_of_version_1():
    assert p.encode(p.Ping())[0] == b"INFD\x01"
