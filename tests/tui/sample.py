"""A made-up daemon under made-up traffic: the source behind the screenshot and the stored pictures."""

from __future__ import annotations

import math
import threading
from typing import Any, TypeVar

import msgspec

from inferd_client.errors import RequestTimeout
from inferd_client.protocol import (
    CostStatus,
    DeviceStatus,
    Event,
    Latency,
    MemoryEntry,
    MemoryUse,
    ModelInfo,
    ModelStatus,
    PluginInfo,
    RequestStatus,
    StatusReply,
    Utilisation,
)

R = TypeVar("R", bound=msgspec.Struct)
MIB = 1 << 20
SLOTS = 64
BLOCKS = 2912
CLIENTS = ("editor#1", "agents#2", "batch#5", "notebook#7")


class SampleSource:
    """Hands out what it is given, then waits; notes every command."""

    dropped = 0

    def __init__(self, *events: Event | None) -> None:
        self._events: list[Event | None] = list(events)
        self._there = threading.Condition()
        self._closed = False
        self.commands: list[tuple[str, str]] = []
        self.known_models: tuple[ModelInfo, ...] = sample_models()
        self.known_plugins: tuple[PluginInfo, ...] = sample_plugins()

    def put(self, event: Event | None) -> None:
        """None stands for news that do not come."""
        with self._there:
            self._events.append(event)
            self._there.notify()

    def next_event(self) -> Event:
        with self._there:
            self._there.wait_for(lambda: self._events or self._closed)
            if self._closed:
                raise EOFError
            event = self._events.pop(0)
        if event is None:
            raise RequestTimeout("idle", 1.0)
        return event

    def close(self) -> None:
        with self._there:
            self._closed = True
            self._there.notify()

    def cancel(self, request: str) -> str:
        return self._note("cancel", request)

    def load(self, model: str) -> str:
        return self._note("load", model)

    def unload(self, model: str) -> str:
        return self._note("unload", model)

    def models(self) -> tuple[ModelInfo, ...]:
        return self.known_models

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self.known_plugins

    def _note(self, name: str, what: str) -> str:
        self.commands.append((name, what))
        return f"{name} was done"


def traffic(count: int = 120) -> list[StatusReply]:
    """Return snapshots, half a second apart."""
    totals: dict[str, float] = dict.fromkeys(("out", "prompt", "done", "drafted", "accepted", "asked", "hits"), 0.0)
    return [_snapshot(step, totals) for step in range(count)]


def edited(status: R, **changes: Any) -> R:
    return msgspec.structs.replace(status, **changes)


def _snapshot(step: int, totals: dict[str, float]) -> StatusReply:
    load = 0.55 + 0.3 * math.sin(step / 17) + 0.12 * math.sin(step / 3.1)
    running = round(11 * load)
    prefilling = 1 + step % 3
    speed = 16 * running**0.75
    totals["out"] += speed / 2
    totals["prompt"] += 90 + 70 * math.sin(step / 5)
    totals["done"] += load / 2
    totals["drafted"] += speed / 3
    totals["accepted"] += speed / 3 * 0.62
    totals["asked"] += 60
    totals["hits"] += 60 * 0.44
    used = 410 + 110 * running + 5 * (step % 7)
    return StatusReply(
        seq=step,
        instance="sample",
        version="0.1.0",
        pid=4711,
        ready=True,
        uptime_s=7260 + step / 2,
        default_model="smollm2-135m",
        devices=(_device(step, used),),
        models=(_model(running, prefilling, used),),
        requests=_requests(step, running, prefilling),
        clients=len(CLIENTS),
        queue_limit=512,
        counters=_counters(totals),
        latency=_latency(load),
        cost=_cost(totals["out"]),
    )


def _device(step: int, used: int) -> DeviceStatus:
    ledger = (MemoryEntry(owner="smollm2-135m", bytes=(138 + 4096 + 400) * MIB),)
    free = (9300 - 3 * (step % 50)) * MIB
    pool = 4096 * MIB
    kv_used = pool * used // BLOCKS
    memory = MemoryUse(
        weights=138 * MIB,
        kv_used=kv_used,
        kv_free=pool - kv_used,
        activations=27 * MIB,
        process=263 * MIB,
        other=15900 * MIB - free - (138 + 27 + 263) * MIB - kv_used,
    )
    return DeviceStatus(
        name="cpu", total_bytes=15900 * MIB, free_bytes=free, limit_bytes=9000 * MIB, ledger=ledger, memory=memory
    )


def _model(running: int, prefilling: int, used: int) -> ModelStatus:
    return ModelStatus(
        name="smollm2-135m",
        state="ready",
        path="/models/smollm2-135m/model.gguf",
        device="cpu",
        dtype="fp32",
        architecture="llama",
        plugins={"attention": "torch", "kv": "paged", "draft": "ngram", "quantizer": "gguf", "parallel": "single"},
        exactness="token",
        exactness_by="attention torch",
        shape={"max_context": 8192, "max_sequences": SLOTS, "token_budget": 512},
        shape_origin={"max_context": "model", "max_sequences": "config", "token_budget": "chunk and sequences"},
        weight_bytes=138 * MIB,
        kv_bytes=4096 * MIB,
        kv_blocks_total=BLOCKS,
        kv_blocks_free=BLOCKS - used,
        kv_blocks_cached=300,
        running=running,
        waiting=4,
        prefilling=prefilling,
        decoding=running - prefilling - 2,
        verifying=2,
        preempted=1,
        expires_s=None,
        progress_age_s=0.02,
        utilisation=Utilisation(
            prefill_flops_s=183e9,
            flops_ceiling=510e9,
            flops_format="int8",
            mfu=0.359,
            decode_bytes_s=21.4e9,
            bytes_ceiling=33.1e9,
            mbu=0.647,
            weight_share=0.71,
        ),
    )


def _cost(out: float) -> CostStatus:
    per_million = 0.21 + 30 / (1000 + out)
    return CostStatus(
        source="estimated",
        meters=("cost.watts_busy", "cost.hardware_price"),
        currency="EUR",
        watts=48.0 + out % 9,
        joules=350e3 + 20 * out,
        prefill=0.002,
        decode=0.015,
        idle=0.003,
        per_million=per_million,
        prefill_per_million=0.1 * per_million,
        decode_per_million=0.75 * per_million,
        idle_per_million=0.15 * per_million,
        output_tokens=81300 + int(out),
        good_tokens=79900 + int(out),
    )


def _requests(step: int, running: int, prefilling: int) -> tuple[RequestStatus, ...]:
    found = [_request(i, step, "prefill" if i >= running - prefilling else "decode", "") for i in range(running)]
    found += [_request(running + i, step, "waiting", why) for i, why in enumerate(("blocks", "blocks", "budget"))]
    return (*found, _request(running + 3, step, "preempted", "blocks"))


def _request(i: int, step: int, state: str, reason: str) -> RequestStatus:
    prompt = 60 + 137 * (i % 7)
    return RequestStatus(
        id=f"req-{1000 + i}",
        client=CLIENTS[i % len(CLIENTS)],
        model="smollm2-135m",
        state=state,
        prompt_tokens=prompt,
        output_tokens=0 if state in ("prefill", "waiting") else 12 + 17 * (20 - i) + step // 4,
        age_s=21.0 - i + step % 2 / 2,
        reason=reason,
        done=prompt * 2 // 3 if state == "prefill" else 0,
        preemptions=int(state == "preempted"),
        priority=-10 if reason == "budget" else 0,
    )


def _counters(totals: dict[str, float]) -> dict[str, float]:
    return {
        "inferd_generation_tokens_total": 81300 + totals["out"],
        "inferd_prefill_tokens_total": 143000 + totals["prompt"],
        'inferd_request_success_total{finished_reason="stop"}': 930 + math.floor(totals["done"]),
        'inferd_request_success_total{finished_reason="length"}': 214,
        'inferd_request_error_total{code="overloaded"}': 3 + 2 * (totals["done"] > 12),
        "inferd_spec_decode_num_draft_tokens_total": 26000 + totals["drafted"],
        "inferd_spec_decode_num_accepted_tokens_total": 16000 + totals["accepted"],
        "inferd_prefix_cache_queries_total": 151000 + totals["asked"],
        "inferd_prefix_cache_hits_total": 66000 + totals["hits"],
    }


def _latency(load: float) -> dict[str, Latency]:
    medians = {
        "queue": 0.012,
        "prefill": 0.21,
        "ttft": 0.26,
        "tpot": 0.048,
        "itl": 0.041,
        "decode": 0.037,
        "verify": 0.055,
        "e2e": 9.4,
    }
    return {
        name: Latency(count=1100, p50=value * (0.5 + load), p95=value * 2.1, p99=value * 3.4)
        for name, value in medians.items()
    }


def sample_models() -> tuple[ModelInfo, ...]:
    return (
        ModelInfo(
            name="smollm2-135m",
            path="/models/smollm2-135m",
            bytes=138 * MIB,
            architecture="llama",
            quantization="Q8_0",
            context=8192,
            loaded=True,
            state="ready",
            default=True,
        ),
        ModelInfo(
            name="qwen2.5-0.5b", path="/models/qwen2.5-0.5b", bytes=500 * MIB, quantization="Q4_0", context=32768
        ),
        ModelInfo(name="broken", path="/models/broken", bytes=5, problem="config.json: not JSON"),
    )


def sample_plugins() -> tuple[PluginInfo, ...]:
    return (
        PluginInfo(name="torch", kind="attention", state="chosen", source="inferd", version="0.1.0", exactness="token"),
        PluginInfo(
            name="reference", kind="attention", state="rejected", source="inferd", exactness="token", why="slower"
        ),
        PluginInfo(
            name="odd", kind="draft", state="FAILED", source="odd-drafts", why="Traceback:\n  line 1\nImportError: odd"
        ),
    )
