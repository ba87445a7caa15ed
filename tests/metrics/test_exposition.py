"""What Prometheus reads: parsed back by its own parser, equal to the status it came from, over HTTP as well."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferd.link import StepStats
from inferd.metrics import Metrics, timings
from inferd.metrics.exporter import Exporter
from inferd.metrics.exposition import Snapshot, render
from inferd.metrics.names import HELP
from inferd_client.protocol import (
    CostStatus,
    DeviceStatus,
    MemoryUse,
    ModelStatus,
    StatusReply,
    Usage,
    Utilisation,
)

DAEMON = Path(__file__).parents[2] / "daemon" / "inferd"
DASHBOARD = Path(__file__).parents[2] / "configs" / "grafana-inferd.json"

STATUS = StatusReply(
    ready=True,
    uptime_s=12.5,
    clients=3,
    devices=(
        DeviceStatus(name="cpu", total_bytes=100, free_bytes=40, memory=MemoryUse(weights=10, other=20)),
        DeviceStatus(name="cuda:0", utilization=0.5, power_w=300.0, temperature_c=60),
    ),
    models=(
        ModelStatus(
            name='od"d\\',
            state="ready",
            running=2,
            kv_blocks_total=10,
            kv_blocks_free=4,
            utilisation=Utilisation(mfu=0.25, mbu=0.5, weight_share=0.75),
        ),
        ModelStatus(name="loading", state="loading"),
    ),
    cost=CostStatus(
        source="measured",
        currency="EUR",
        watts=50.0,
        joules=9.0,
        prefill=1.0,
        decode=2.0,
        idle=3.0,
        per_million=7.0,
        prefill_per_million=1.5,
        decode_per_million=2.5,
        idle_per_million=3.0,
        good_tokens=8,
    ),
)


def metrics() -> Metrics:
    """Metrics in which everything has happened."""
    found = Metrics()
    zero = dict.fromkeys(StepStats.__struct_fields__, 1)
    found.step(StepStats(**(zero | {"decode_s": 0.5, "verifying": 0, "overlap": "yes"})), None)
    for reason in ("stop", "length"):
        found.finished(reason, timings(0.0, 0.1, [], 0.5), Usage(prompt_tokens=3, completion_tokens=2), 1.0)
    for name in ("ttft", "tpot", "itl", "queue", "prefill", "e2e", "verify"):
        found.record(name, 0.3, 1.0)
    found.count("generation_tokens_total", 7)
    found.count("request_error_total", code="overloaded")
    return found


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_figure_arrives() -> None:
    text = render(Snapshot.of(STATUS, metrics()))
    found = parsed(text)
    odd = (("model_name", 'od"d\\'),)
    wanted = {
        ("inferd_ready", ()): 1.0,
        ("inferd_clients", ()): 3.0,
        ("inferd_request_success_total", (("finished_reason", "length"),)): 1.0,
        ("inferd_request_error_total", (("code", "overloaded"),)): 1.0,
        ("inferd_generation_tokens_total", ()): 7.0,
        ("inferd_prompt_tokens_total", ()): 6.0,
        ("inferd_num_requests_running", odd): 2.0,
        ("inferd_kv_cache_usage_perc", odd): 0.6,
        ("inferd_prefill_mfu_ratio", odd): 0.25,
        ("inferd_decode_mbu_ratio", odd): 0.5,
        ("inferd_decode_weight_read_ratio", odd): 0.75,
        ("inferd_device_memory_bytes", (("device", "cpu"), ("part", "other"))): 20.0,
        ("inferd_device_power_watts", (("device", "cuda:0"),)): 300.0,
        ("inferd_cost_total", (("phase", "idle"),)): 3.0,
        ("inferd_energy_joules_total", ()): 9.0,
        ("inferd_good_tokens_total", ()): 8.0,
        ("inferd_cost_per_million_tokens", (("currency", "EUR"), ("part", "total"), ("source", "measured"))): 7.0,
        ("inferd_time_to_first_token_seconds_count", ()): 1.0,
        ("inferd_time_to_first_token_seconds_bucket", (("le", "0.25"),)): 0.0,
        ("inferd_time_to_first_token_seconds_bucket", (("le", "0.5"),)): 1.0,
        ("inferd_step_decode_seconds_sum", ()): 0.5,
    }
    assert {key: found.get(key) for key in wanted} == wanted
    assert "# TYPE inferd_generation_tokens_total counter" in text
    assert "# TYPE inferd_time_to_first_token_seconds histogram" in text


def test_what_is_unknown_is_left_out() -> None:
    found = parsed(render(Snapshot.of(STATUS, Metrics())))
    names = {(name, dict(labels).get("device"), dict(labels).get("model_name")) for name, labels in found}
    assert ("inferd_device_memory_total_bytes", "cpu", None) in names
    assert ("inferd_device_memory_total_bytes", "cuda:0", None) not in names
    assert ("inferd_prefill_mfu_ratio", None, "loading") not in names
    assert ("inferd_model_ready", None, "loading") in names
    unpriced = parsed(render(Snapshot.of(StatusReply(cost=CostStatus()), Metrics())))
    assert not [name for name, _ in unpriced if "cost" in name or "joules" in name or "watts" in name]
    assert render(Snapshot.of(StatusReply(), Metrics()))


def test_every_metric_says_what_it_is() -> None:
    """Those of the rendered text, and those that any source counts; and nothing stale."""
    told = {family.name: family for family in text_string_to_metric_families(render(Snapshot.of(STATUS, metrics())))}
    counted = {
        name
        for path in DAEMON.rglob("*.py")
        for name in re.findall(r'\.count\(\s*"(\w+)"', path.read_text())
        if name.endswith("_total")
    }
    families = {name.removeprefix("inferd_") for name in told}
    named = {name.removesuffix("_total") for name in HELP}
    assert families | {name.removesuffix("_total") for name in counted} == named
    assert [name for name, family in told.items() if family.documentation.endswith(name)] == []
    assert "# HELP inferd_request_success_total Requests that were served, by how they ended." in render(
        Snapshot.of(STATUS, metrics())
    )


def test_the_status_has_the_same_counters() -> None:
    counted = metrics()
    found = parsed(render(Snapshot.of(StatusReply(), counted)))
    spelled = {name: value for name, value in counted.counters.items() if "{" not in name}
    assert spelled == {name: found[name, ()] for name in spelled}


def test_the_exporter_serves_the_loopback_alone() -> None:
    exporter = Exporter(0)
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        assert exporter._server.server_address[0] == "127.0.0.1"
        assert urllib.request.urlopen(url).read() == b""
        exporter.publish(Snapshot.of(STATUS, metrics()))
        texts: list[str] = []
        readers = [
            threading.Thread(target=lambda: texts.append(urllib.request.urlopen(url).read().decode())) for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert texts == [render(Snapshot.of(STATUS, metrics()))] * 4
        with pytest.raises(OSError, match="in use"):
            Exporter(exporter.port)
    finally:
        exporter.close()


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Every metric and label that the Grafana dashboard names is in the exporter's output."""
    text = DASHBOARD.read_text()
    board = json.loads(text)
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 20
    found = parsed(render(Snapshot.of(STATUS, metrics())))
    names = {name for name, _ in found}
    asked = {name for query in queries for name in re.findall(r"inferd_\w+", query)}
    assert asked - names == set()
    labels = {label for _, pairs in found for label, _ in pairs}
    used = {
        label
        for query in queries
        for part in re.findall(r"\{([^}]*)\}|by \(([^)]*)\)", query)
        for label in re.findall(r"(\w+)(?=[=,)!]|$)", " ".join(part))
    }
    assert used - labels == set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    boxes = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
