"""The traffic record on disk: one JSON file in the state folder, replaced whole."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from inferd_client.protocol import TrafficReport

FILE = "traffic.json"
VERSION = 1


class TrafficFile(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    models: list[TrafficReport]


def read(folder: Path) -> list[TrafficReport]:
    """Return what is on disk in a state folder; nothing where there is no file. Raises ValueError, OSError."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=TrafficFile)
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{folder / FILE} is damaged: {error}") from None
    if found.version != VERSION:
        raise ValueError(f"{folder / FILE} has version {found.version}, this inferd reads {VERSION}")
    return found.models


def encode(report: TrafficReport) -> msgspec.Raw:
    """Return one model's record as it is in the file; of those that did not change it can be kept."""
    return msgspec.Raw(msgspec.json.encode(report))


def write(folder: Path, encoded: Iterable[msgspec.Raw]) -> None:
    """Put the records in place at once: a reader, or a daemon that is killed, sees the old or the new file.

    It is not forced to the disk: the end of a process loses nothing, that of the machine the last seconds.
    Raises OSError.
    """
    part = folder / f"{FILE}.part"
    part.touch(mode=0o600)
    part.write_bytes(msgspec.json.encode({"version": VERSION, "models": list(encoded)}))
    part.replace(folder / FILE)


def forget(folder: Path, model: str = "") -> tuple[TrafficReport, ...]:
    """Drop one model's record, or all, where no daemon keeps it; return what is gone. Raises OSError."""
    try:
        found = read(folder)
    except ValueError:  # clearing is the remedy for a damaged file
        found, model = [], ""
    kept = [report for report in found if model not in ("", report.model)]
    if kept:
        write(folder, map(encode, kept))
    else:
        (folder / FILE).unlink(missing_ok=True)
    return tuple(report for report in found if report not in kept)


def put_aside(folder: Path) -> None:
    """Keep a file that cannot be read under another name; the one put aside before goes."""
    with suppress(OSError):
        (folder / FILE).replace(folder / f"{FILE}.damaged")


def make_folder(folder: Path) -> None:
    """Make the state folder, for us alone. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
