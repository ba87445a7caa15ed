"""The plain view: every field, nothing made up, nothing dangerous."""

from __future__ import annotations

import pytest

from inferd_client.protocol import (
    CostStatus,
    DeviceStatus,
    Latency,
    MemoryEntry,
    MemoryUse,
    ModelStatus,
    RequestStatus,
    StatusReply,
    Utilisation,
)
from inferd_tui.plain import MAX_REQUESTS, render
from inferd_tui.units import number, seconds, size

MODEL = ModelStatus(
    name="m\x1b[31m",
    state="ready",
    device="cpu",
    dtype="fp32",
    shape={"max_context": 8192},
    weight_bytes=3 << 20,
    kv_bytes=1 << 30,
    kv_blocks_total=200,
    kv_blocks_free=150,
    running=2,
    waiting=1,
    exactness="token",
    exactness_by="attention torch",
    weights_note="dequantised",
    restarts=1,
    expires_s=90.0,
)
REQUEST = RequestStatus(
    id="r", client="c", model="m", state="decode", prompt_tokens=5, output_tokens=1234, age_s=0.25, reason="blocks"
)


def lines(**fields: object) -> list[str]:
    return render(StatusReply(version="1.2", pid=7, **fields))  # pyright: ignore[reportArgumentType]


def test_an_idle_daemon() -> None:
    assert lines() == ["inferd 1.2: serving, not ready, pid 7, up 0.0 ms, 0 clients", "", "no model is loaded"]


def test_a_busy_daemon() -> None:
    device = DeviceStatus(
        name="cpu", total_bytes=8 << 30, free_bytes=4 << 30, limit_bytes=None, ledger=(MemoryEntry(owner="m", bytes=9),)
    )
    out = lines(
        ready=True,
        models=(MODEL,),
        devices=(device,),
        warnings=("cuda was lost",),
        latency={"ttft": Latency(count=3, p50=0.01, p95=1.5, p99=None), "tpot": Latency()},
        requests=(REQUEST,),
    )
    text = "\n".join(out)
    assert "WARNING: cuda was lost" in out
    assert "cpu: 4.0 GiB free of 8.0 GiB, may grant n/a: m 9 B" in out
    row = next(line for line in out if line.startswith("m␛[31m  ready")).split("  ")
    assert [c.strip() for c in row if c.strip()] == [
        *("m␛[31m", "ready", "cpu", "fp32", "8,192", "3.0 MiB", "1.0 GiB", "25%", "2", "1", "90.0 s"),
    ]
    assert "m␛[31m: exactness token (lowered by attention torch)" in out
    assert "m␛[31m: its worker was restarted 1 time" in out
    assert ["ttft", "3", "10.0", "ms", "1.5", "s", "n/a"] in [line.split() for line in out]
    assert "tpot" not in text
    assert ["r", "c", "m", "decode", "5", "1,234", "250.0", "ms", "blocks"] in [line.split() for line in out]
    assert "\x1b" not in text


def test_memory_use_and_cost() -> None:
    gpu = DeviceStatus(
        name="cuda:0",
        total_bytes=8 << 30,
        free_bytes=4 << 30,
        description="NVIDIA H100",
        memory=MemoryUse(weights=1 << 30, other=512 << 20),
        utilization=0.5,
        power_w=300.4,
        temperature_c=60,
    )
    use = Utilisation(
        prefill_flops_s=5e10, flops_ceiling=5e11, flops_format="int8", mfu=0.1, decode_bytes_s=4e9, weight_share=0.875
    )
    cost = CostStatus(
        source="estimated",
        meters=("cost.watts_busy",),
        currency="EUR",
        watts=60.0,
        joules=1234.0,
        per_million=1.5,
        prefill_per_million=0.5,
        decode_per_million=0.75,
        idle_per_million=0.25,
        output_tokens=2000,
        good_tokens=1900,
    )
    model = ModelStatus(name="m", state="ready", utilisation=use)
    out = lines(devices=(gpu, DeviceStatus(name="cuda:1", problem="lost\x1b")), models=(model,), cost=cost)
    assert "cuda:0: weights 1.0 GiB, KV used n/a, KV free n/a, activations n/a, process n/a, others 512.0 MiB" in out
    assert "cuda:0: NVIDIA H100, busy 50%, power 300 W, temperature 60 C" in out
    assert "cuda:1: no figures lost␛" in out
    assert "m: prefill MFU 10.0%: 50 GFLOP/s of 500 GFLOP/s measured in int8" in out
    assert "m: decode MBU n/a: 4 GB/s of n/a measured; 87.5% weights, the rest KV" in out
    assert (
        "cost per million good tokens: 1.50 EUR (prefill 0.5 EUR, decode 0.75 EUR, idle 0.25 EUR), "
        "estimated from cost.watts_busy" in out
    )
    assert "power 60 W, 1.23 kJ since the start; 1,900 of 2,000 output tokens were good" in out


def test_many_requests_are_counted() -> None:
    out = lines(requests=(REQUEST,) * (MAX_REQUESTS + 5))
    assert out[-1] == "... and 5 more"


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (size(None), "n/a"),
        (size(0), "0 B"),
        (size(1023), "1023 B"),
        (size(1024), "1.0 KiB"),
        (size(5 << 40), "5.0 TiB"),
        (seconds(None), "n/a"),
        (seconds(0.0005), "0.5 ms"),
        (seconds(1), "1.0 s"),
        (seconds(125), "2m05s"),
        (seconds(7260), "2h01m"),
        (number(None), "n/a"),
        (number(0), "0"),
    ],
)
def test_units(call: str, wanted: str) -> None:
    assert call == wanted


def test_steps_that_did_not_overlap_are_told_with_the_reason() -> None:
    def told(steps: dict[str, int]) -> list[str]:
        out = lines(models=(ModelStatus(name="m", state="ready", steps=steps),))
        return [line for line in out if "overlapped" in line]

    assert told({}) == told({"off": 5000}) == []
    assert told({"yes": 1000}) == ["m: 1,000 of 1,000 steps overlapped"]
    (line,) = told({"yes": 1500, "host": 400, "idle": 100})
    assert line.startswith("m: 1,500 of 2,000 steps overlapped (400 waited for the host")
    assert line.endswith("100 had nothing behind them)")
