"""`inferd traffic` with a daemon and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from inferd.traffic import file
from inferd.traffic.record import Traffic
from inferd_client.testing import FakeDaemon
from tests.cli.tool import Tool

pytestmark = pytest.mark.daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as running:
        client = running.client()
        for _ in range(19):
            client.generate("x" * 10, max_tokens=3)
        client.generate("x" * 100, max_tokens=40)
        yield running


@pytest.fixture
def live(daemon: FakeDaemon, tmp_path: Path) -> Tool:
    return Tool(tmp_path, daemon.runtime)


def test_show_prints_both_histograms_and_quantiles(live: Tool) -> None:
    ran = live("traffic", "show")
    assert (ran.code, ran.err) == (0, "")
    words = [line.split() for line in ran.out.splitlines()]
    assert ["ISL", "10", "10", "103"] in words
    assert ["OSL", "3", "3", "43"] in words
    assert ["both", "at", "once", "(ISL,", "OSL)", "10,", "3", "10,", "3", "103,", "43"] in words
    assert ["8", "to", "15", "19", "#" * 40] in words
    assert ["64", "to", "127", "1", "###"] in words
    assert "fake: 20 requests since" in ran.out


def test_show_as_json_and_for_one_model(live: Tool) -> None:
    (found,) = live("traffic", "show", "--json").json
    assert found["isl"] == {"p50": 10, "p95": 10, "p99": 103}
    assert found["joint"]["p99"] == {"input": 103, "output": 43}
    assert found["ends"] == {"length": 20}
    assert live("traffic", "show", "--json", "-m", "other").json == []


def test_export_is_the_whole_record(live: Tool, tmp_path: Path) -> None:
    assert live("traffic", "export", "-o", str(tmp_path / "t.json")).code == 0
    (written,) = json.loads((tmp_path / "t.json").read_text())
    assert written["lengths"] == [[10, 3, 19], [103, 43, 1]]
    assert [entry[1:3] for entry in written["recent"][-2:]] == [[10, 3], [100, 40]]
    assert live("traffic", "export").json == [written]


def test_clear_asks_first() -> None:
    with FakeDaemon() as daemon:
        daemon.client().generate("hello")
        live = Tool(daemon.runtime.parent, daemon.runtime)
        assert live("traffic", "clear", stdin="n\n").code == Exit.INTERRUPTED
        assert live("traffic", "show", "--json").json[0]["requests"] == 1
        assert "1 requests are forgotten" in live("traffic", "clear", "--yes").err
        assert "no requests are on record" in live("traffic", "show").err


def test_a_daemon_that_keeps_none_says_so() -> None:
    with FakeDaemon(config={"traffic": {"record": False}}) as daemon:
        ran = Tool(daemon.runtime.parent, daemon.runtime)("traffic", "show")
        assert (ran.code, ran.err.count("\n")) == (Exit.FAILURE, 1)
        assert "traffic.record" in ran.err


def test_without_a_daemon_the_file_is_read(tool: Tool) -> None:
    state = tool.home / "state" / "inferd"
    assert "no requests" in tool("traffic", "show").err
    record = Traffic("m", 5.0)
    record.ended(5.0, 10, [3], 4, "stop")
    file.make_folder(state)
    file.write(state, [file.encode(record.report())])
    assert tool("traffic", "show", "--json").json[0]["cached_tokens"] == 4
    (state / file.FILE).write_text("{")
    ran = tool("traffic", "show")
    assert (ran.code, ran.err.count("\n")) == (Exit.FAILURE, 1)
    assert "inferd traffic clear" in ran.err
    assert tool("traffic", "clear", "--yes").code == 0
    assert tool("traffic", "show").code == 0
