"""`inferd bench serve` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from inferd_client.testing import FakeDaemon
from tests.cli.tool import Tool

pytestmark = pytest.mark.daemon

SHORT = ("--input-len", "12", "--output-len", "5", "--requests", "8", "--warmup", "1")


@pytest.fixture(scope="module")
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon({"delay_s": 0.002, "reply": "ab", "models": ["one", "two"], "context": 512}) as running:
        yield running


@pytest.fixture
def live(daemon: FakeDaemon, tmp_path: Path) -> Tool:
    return Tool(tmp_path, daemon.runtime)


def test_the_table_has_all_figures(live: Tool) -> None:
    ran = live("bench", "serve", *SHORT, "--slo-ttft", "60000", "--slo-tpot", "60000")
    assert (ran.code, ran.err) == (0, "")
    for text in ("TTFT ms", "TPOT ms", "ITL ms", "E2E ms", "P99", "output tokens", "good requests (TTFT <= 60000 ms"):
        assert text in ran.out
    assert "input 12, output 5 tokens" in ran.out
    assert "1 at a time: 8 requests" in ran.out
    assert "good: 100" in ran.out
    assert "one on cpu" in ran.out


def test_json_and_the_file_of_all_requests(live: Tool, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    ran = live("bench", "serve", *SHORT, "--concurrency", "2", "--json", "-o", str(file), "-m", "two")
    (found,) = ran.json["runs"]
    assert ran.json["environment"]["model"] == "two"
    summary = found["summary"]
    assert (summary["requests"], summary["output_tokens"], summary["prompt_tokens"]) == (8, 40, 96)
    assert summary["goodput"] is None
    for name in ("ttft", "tpot", "itl", "e2e"):
        p50 = summary["latency"][name]["p50"]
        assert 0 < p50["low"] <= p50["value"] <= p50["high"]
    assert "requests" not in found
    requests = json.loads(file.read_text())["runs"][0]["requests"]
    assert [r["output_tokens"] for r in requests] == [5] * 8
    assert all(r["timings"]["ttft_s"] <= r["ttft"] for r in requests), "the daemon cannot see what the client waits"


def test_a_sweep_and_its_plot(live: Tool, tmp_path: Path) -> None:
    picture = tmp_path / "sweep.png"
    ran = live("bench", "serve", *SHORT, "--rate", "50", "--rate", "200", "--slo-ttft", "100", "--plot", str(picture))
    assert ran.code == 0, ran.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    assert [line.split("  ")[0] for line in ran.out.splitlines()[-2:]] == ["50 a second", "200 a second"]


def test_a_run_by_time(live: Tool) -> None:
    ran = live("bench", "serve", *SHORT[:4], "--duration", "0.3", "--json")
    assert ran.json["runs"][0]["summary"]["requests"] > 0


def test_lengths_past_the_context_are_cut_and_said(live: Tool) -> None:
    ran = live("bench", "serve", "--profile", "LISO", "--requests", "2", "--warmup", "0", "--json")
    assert ran.json["clipped"] == 2
    assert ran.json["runs"][0]["summary"]["failed"] == {}
    shown = live("bench", "serve", "--profile", "LISO", "--requests", "1", "--warmup", "0")
    assert "1 requests were cut to the context of 512" in shown.err


def test_the_recorded_profile(tmp_path: Path) -> None:
    with FakeDaemon() as daemon:
        live = Tool(tmp_path, daemon.runtime)
        ran = live("bench", "serve", "--profile", "recorded")
        assert (ran.code, ran.err.count("\n")) == (Exit.FAILURE, 1)
        assert "traffic record" in ran.err
        for prompt, output in (("x" * 30, 4), ("y" * 60, 2)):
            daemon.client().generate(prompt, max_tokens=output)
        ran = live(
            "bench", "serve", "--profile", "recorded", "--requests", "12", "--warmup", "0", "-o", f"{tmp_path}/o"
        )
        assert "2 sequences of fake" in ran.out
        (run,) = json.loads((tmp_path / "o").read_text())["runs"]
        assert {(r["prompt_tokens"], r["output_tokens"]) for r in run["requests"]} == {(30, 4), (60, 2)}
        assert "a second" in run["summary"]["load"]


def test_cost_where_prices_are_known(tmp_path: Path) -> None:
    config = {"cost": {"tariff_kwh": 0.3, "currency": "EUR", "watts_busy": 100.0}, "slo": {"ttft_ms": 9000}}
    with FakeDaemon({"delay_s": 0.008}, config=config) as daemon:
        live = Tool(tmp_path, daemon.runtime)
        long = ("--input-len", "20", "--output-len", "50", "--requests", "3", "--warmup", "12")
        (run,) = live("bench", "serve", *long, "--json").json["runs"]
    spent = run["spent"]
    assert (spent["source"], spent["currency"]) == ("estimated", "EUR")
    assert spent["per_million"] > 0
    assert spent["joules"] > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--rate", "1", "--concurrency", "2"), "exclude each other"),
        (("--requests", "1", "--duration", "2"), "exclude each other"),
        (("--input-len", "gamma:1:2"), "is none of"),
        (("--profile", "recorded", "--input-len", "5"), "has its own lengths"),
        (("--rate", "0"), "not in the range"),
    ],
)
def test_wrong_options_are_one_line(tool: Tool, arguments: tuple[str, ...], text: str) -> None:
    ran = tool("bench", "serve", *arguments)
    assert (ran.code, ran.err.count("\n")) == (Exit.USAGE, 1), ran.err
    assert text in ran.err


def test_without_a_daemon_the_remedy_is_named(tool: Tool) -> None:
    ran = tool("bench", "serve")
    assert (ran.code, ran.err.count("\n")) == (Exit.NOT_RUNNING, 1)
