"""The record on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.traffic import file
from inferd.traffic.record import Traffic
from inferd_client.protocol import TrafficReport


def report(name: str) -> TrafficReport:
    record = Traffic(name, 5.0)
    record.ended(5.0, 10, [3], 4, "stop")
    return record.report()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert file.read(tmp_path) == []
    file.write(tmp_path, map(file.encode, [report("a"), report("b")]))
    assert file.read(tmp_path) == [report("a"), report("b")]
    assert [path.name for path in tmp_path.iterdir()] == [file.FILE]
    assert (tmp_path / file.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1}', b"\xff\xfe", b'{"version":1,"models":[{}]}'])
def test_a_damaged_file_is_said_to_be(tmp_path: Path, content: bytes) -> None:
    (tmp_path / file.FILE).write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        file.read(tmp_path)
    assert file.forget(tmp_path) == ()
    assert file.read(tmp_path) == []


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / file.FILE).write_text(json.dumps({"version": 99, "models": []}))
    with pytest.raises(ValueError, match="version 99"):
        file.read(tmp_path)


def test_forgetting_one_model_leaves_the_others(tmp_path: Path) -> None:
    file.write(tmp_path, map(file.encode, [report("a"), report("b")]))
    assert file.forget(tmp_path, "a") == (report("a"),)
    assert file.read(tmp_path) == [report("b")]
    assert file.forget(tmp_path) == (report("b"),)
    assert not (tmp_path / file.FILE).exists()
