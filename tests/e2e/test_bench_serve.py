"""`inferd bench serve` and the traffic record against a daemon that computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd_client import Client
from tests.cli.tool import Tool
from tests.e2e.harness import Served

pytestmark = pytest.mark.daemon

SEED = "1"
"""Of prompts that spring no trap of the plugin."""


def test_a_load_on_a_real_engine(served: Served, client: Client, tmp_path: Path) -> None:
    """Outputs run to their length, what is shared is found in the cache, and clients see no less than the daemon."""
    before = client.traffic("tiny").models
    tool, file = Tool(tmp_path, served.runtime), tmp_path / "o.json"
    lengths = ("--input-len", "uniform:60:90", "--output-len", "uniform:4:12", "--shared", "48")
    load = ("--rate", "40", "--requests", "24", "--warmup", "2", "--clients", "2", "--seed", SEED)
    ran = tool("bench", "serve", *lengths, *load, "--slo-ttft", "60000", "--json", "-o", str(file))
    assert ran.code == 0, ran.err
    (run,) = ran.json["runs"]
    summary = run["summary"]
    assert summary["failed"] == {}
    assert summary["goodput"]["share"]["value"] == 1.0
    assert summary["cached_tokens"] >= 24 * 40, (
        "the 48 shared tokens are six blocks of 8, in the cache from the warm-up on"
    )
    requests = json.loads(file.read_text())["runs"][0]["requests"]
    assert [r["output_tokens"] for r in requests] == [r["max_tokens"] for r in requests]
    assert all(r["timings"]["ttft_s"] <= r["ttft"] for r in requests)
    assert ran.json["environment"]["plugins"]["attention"] == "trap"
    assert client.traffic("tiny").models == before, "load that is not traffic stays out of the record"


def test_reuse_is_on_record(served: Served, client: Client) -> None:
    prompt = [50 + i % 90 for i in range(80)]
    for _ in range(2):
        client.generate(prompt, max_tokens=3, ignore_eos=True)
    (found,) = client.traffic("tiny").models
    assert [entry[1:3] for entry in found.recent[-2:]] == [(80, 3), (80, 3)]
    assert 64 <= found.recent[-1][3] < 80, "all but the last block, of which one token is always computed"
    assert found.cached_tokens >= found.recent[-1][3]
