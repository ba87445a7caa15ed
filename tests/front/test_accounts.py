"""Cost and metrics through the real front: what requests are told they cost, and what the daemon tells of itself."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Raw, daemon, eventually, launch
from tests.ports import free_port

PRICES = {
    "tariff_kwh": 3600.0,
    "currency": "EUR",
    "hardware_price": 3600.0,
    "lifetime_hours": 1.0,
    "watts_busy": 2000.0,
    "watts_idle": 1000.0,
}
"""A thousandth of a EUR a joule, and one a second: 3 EUR a busy second, 2 an idle one."""


def served(client: Raw, **options: Any) -> p.Done:
    _, end = client.run("prompt", **options)
    assert isinstance(end, p.Done), end
    return end


def test_requests_and_idling_pay_for_all_of_the_time() -> None:
    config = {"cost": PRICES, "slo": {"ttft_ms": 60_000.0}}
    with daemon(config=config, delay_s=0.02, reply="x" * 30) as running:
        client = running.client()
        began = client.status()
        dones = [served(client, max_tokens=20 + i) for i in range(6)]
        charged_s = sum(done.cost.decode_s for done in dones if done.cost is not None)
        ended = eventually(lambda: settled(client.status(), began.uptime_s + charged_s))
    costs = [done.cost for done in dones]
    assert all(cost is not None for cost in costs)
    known = [cost for cost in costs if cost is not None]
    for done, cost in zip(dones, known, strict=True):
        assert (cost.source, cost.currency, cost.good) == ("estimated", "EUR", True)
        assert cost.decode_s > 0.02 * (done.usage.completion_tokens - 1)
        assert cost.per_million == pytest.approx(1e6 * cost.decode / done.usage.completion_tokens)
    exact = [cost.decode == pytest.approx(3 * cost.decode_s) for cost in known]
    assert any(exact), "where the machine pauses, a step may be charged at the rate of a later second, but not all are"
    found = ended.cost
    assert found is not None
    charged = sum((cost.prefill or 0) + (cost.decode or 0) for cost in known)
    assert (found.prefill or 0) + (found.decode or 0) == pytest.approx(charged, rel=0.001)
    assert found.idle is not None
    assert charged_s + found.idle / 2 <= ended.uptime_s + 2.0, "a step that was paused may reach into two settlements"
    assert found.good_tokens == found.output_tokens == sum(done.usage.completion_tokens for done in dones)
    assert found.meters == ("cost.watts_busy", "cost.hardware_price")


def settled(status: p.StatusReply, others_s: float) -> p.StatusReply | None:
    """Return the report once all but the last second or so is accounted for, and some of it was idle."""
    idle_s = ((status.cost and status.cost.idle) or 0.0) / 2
    return status if idle_s > 1.0 and others_s + idle_s > status.uptime_s - 1.2 else None


def test_late_tokens_are_not_good() -> None:
    with daemon(config={"cost": PRICES, "slo": {"tpot_ms": 1.0}}, delay_s=0.01, reply="slow answer") as running:
        client = running.client()
        done = served(client, max_tokens=5)
        assert done.cost is not None
        assert done.cost.good is False
        found = client.status().cost
    assert found is not None
    assert (found.output_tokens, found.good_tokens, found.per_million) == (5, 0, None)


def test_without_prices_nothing_is_told() -> None:
    with daemon(reply="x") as running:
        done = served(running.client())
    assert done.cost is not None
    assert (done.cost.source, done.cost.prefill, done.cost.decode, done.cost.per_million) == ("n/a", None, None, None)


def test_metrics_as_text_and_over_the_loopback() -> None:
    port = free_port()
    with daemon(config={"metrics": {"port": port}}, reply="abc") as running:
        client = running.client()
        served(client, max_tokens=3)
        reply = client.call(p.Metrics(id="m"))
        assert isinstance(reply, p.MetricsReply)
        told = values(reply.text)
        eventually(lambda: values(scrape(port)).get("inferd_generation_tokens_total") == 3.0)
        scraped = scrape(port)
    assert told["inferd_generation_tokens_total"] == 3.0
    assert told["inferd_e2e_request_latency_seconds_count"] == 1.0
    assert set(values(scraped)) == set(told)


def scrape(port: int) -> str:
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S).read().decode()


def values(text: str) -> dict[str, Any]:
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_a_taken_port_is_told_at_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"metrics.port = {port}: 127.0.0.1:{port}: Address already in use"):
            launch(tmp_path / "run", config={"metrics": {"port": port}})


def test_a_cancelled_request_is_told_its_cost_so_far() -> None:
    with daemon(config={"cost": PRICES}, delay_s=0.02, reply="x" * 500) as running:
        client = running.client()
        request = client.generate("a", max_tokens=400)
        client.until(request, p.Tokens)
        client.until(request, p.Tokens)
        client.call(p.Cancel(id="c", request=request))
        done = client.finish(request)
    assert isinstance(done, p.Done)
    assert done.reason == "cancelled"
    assert done.cost is not None
    assert (done.cost.decode or 0) > 0
