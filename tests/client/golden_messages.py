"""One message of each kind with every field set, the frames of protocol 1.0. Run to write a new golden file.

Once a version is out its file is never rewritten: that would be a new major.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from inferd_client import protocol as p

GOLDEN = Path(__file__).parent / "golden" / "v1.json"

SAMPLING = p.SamplingParams(
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias={5: -100.0},
    seed=42,
    n=2,
    max_tokens=64,
    min_tokens=3,
    stop=("\n\n", "ende"),
    include_stop=True,
    stop_token_ids=(7, 9),
    ignore_eos=True,
    logprobs=2,
    prompt_logprobs=1,
    bad_words=("no",),
    allowed_token_ids=(1, 2, 3),
    json_schema={"type": "object", "properties": {"a": {"enum": [1, "x", None]}}},
    regex="a+",
    grammar='start: "a"',
    choice=("yes", "no"),
)
CALLS = [{"function": {"name": "f", "arguments": {"x": 1}}}]
MESSAGES = [
    p.Message(role="user", content="grüß dich"),
    p.Message(role="assistant", name="a", tool_calls=CALLS, reasoning_content="hm"),
    p.Message(role="tool", content="2", tool_call_id="c1"),
]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
LOGPROB = p.TokenLogprob(token=5, logprob=-0.5, rank=2, top=((6, -0.25), (5, -0.5)))
USAGE = p.Usage(
    prompt_tokens=9, completion_tokens=4, cached_tokens=8, drafted_tokens=6, accepted_tokens=3, preemptions=1
)
LIMITS = p.Limits(max_frame=8388608, max_queue=512, max_client_requests=256, max_context=2048)
MODEL = p.ModelStatus(
    name="m",
    state="ready",
    path="/models/m.gguf",
    detail="d",
    pid=8,
    device="cpu",
    dtype="fp32",
    architecture="llama",
    plugins={"kv": "paged"},
    exactness="token",
    exactness_by="torch",
    eager_because="torch",
    shape={"max_context": 2048},
    shape_origin={"max_context": "model"},
    weights_note="dequantised",
    weight_bytes=1,
    kv_bytes=2,
    kv_blocks_total=3,
    kv_blocks_free=2,
    kv_blocks_cached=1,
    running=2,
    waiting=3,
    prefilling=1,
    decoding=1,
    verifying=1,
    preempted=1,
    restarts=1,
    expires_s=9.5,
    progress_age_s=0.01,
)
STATUS = p.StatusReply(
    id="s",
    seq=3,
    instance="i",
    version="0.1.0",
    pid=7,
    live=False,
    ready=True,
    state="draining",
    uptime_s=1.5,
    default_model="m",
    devices=(
        p.DeviceStatus(
            name="cpu",
            total_bytes=100,
            free_bytes=50,
            limit_bytes=80,
            ledger=(p.MemoryEntry(owner="m", bytes=5),),
            unified=True,
        ),
    ),
    models=(MODEL,),
    requests=(
        p.RequestStatus(
            id="r",
            client="c",
            model="m",
            state="decode",
            prompt_tokens=9,
            output_tokens=4,
            age_s=0.5,
            reason="blocks",
        ),
    ),
    clients=2,
    queue_limit=512,
    counters={"inferd_requests_total": 5.0},
    latency={"ttft": p.Latency(count=4, p50=0.1, p95=0.2, p99=0.3)},
    warnings=("w",),
)

DATA: list[p.Request] = [
    p.Hello(major=1, minor=0, client="golden", session="secret"),
    p.Ping(nonce=5),
    p.Generate(
        id="r",
        model="m",
        prompt="grüß dich",
        sampling=SAMPLING,
        priority=-3,
        deadline_ms=5000,
        queue_timeout_ms=700,
        special_tokens=True,
        keep_alive_s=-1.0,
    ),
    p.Generate(id="r2", prompt_ids=[1, 70000]),
    p.Generate(id="r3", messages=MESSAGES, tools=TOOLS, template_args={"enable_thinking": False}),
    p.Tokenize(id="t", model="m", text="x", add_bos=False, special_tokens=True),
    p.Render(id="n", messages=MESSAGES, model="m", tools=TOOLS, template_args={"a": 1}),
    p.Generate(id="r4", prompt="x", record=False),
]
CONTROL: list[p.Request] = [
    p.Hello(),
    p.Cancel(id="c", request="r", anywhere=True),
    p.Status(id="s"),
    p.Models(id="m"),
    p.Load(id="l", model="m", keep_alive_s=60.0),
    p.Unload(id="u", model="m", force=True),
    p.Plugins(id="p"),
    p.Drain(id="d", timeout_s=2.5),
    p.Traffic(id="x", model="m", clear=True),
]
ANSWERS: list[p.Reply] = [
    p.Welcome(
        major=1,
        minor=0,
        version="0.1.0",
        instance="i",
        session="secret",
        role="admin",
        limits=LIMITS,
        heartbeat_s=1.0,
        resumed=True,
    ),
    p.Pong(nonce=5),
    p.Accepted(id="r", prompt_tokens=9, max_tokens=64),
    p.Progress(id="r", state="prefill", done=4, total=9, reason="budget"),
    p.Tokens(
        id="r",
        seq=1,
        choice=1,
        text="ß",
        ids=(5,),
        logprobs=(LOGPROB,),
        prompt_logprobs=(None, LOGPROB),
        finish="length",
    ),
    p.Done(
        id="r",
        reason="stop",
        finish=(
            p.Finish(choice=0, reason="stop", stop="ende", seed=42),
            p.Finish(choice=1, reason="stop", stop=7, seed=43),
        ),
        usage=USAGE,
        timings=p.Timings(queue_s=0.1, prefill_s=0.2, ttft_s=0.3, tpot_s=0.01, e2e_s=0.5),
    ),
    p.Error(
        id="r",
        code=p.Code.OVERLOADED,
        message="full",
        field="f",
        limit=512.0,
        retry_after_ms=250,
        retry_safe=True,
        usage=USAGE,
    ),
    p.Tokenized(id="t", ids=[1, 2]),
    p.Rendered(id="n", text="<s>", ids=[1]),
    p.Ok(id="c", detail="cancelled"),
    STATUS,
    p.ModelsReply(
        id="m",
        models=(
            p.ModelInfo(
                name="m",
                path="/m",
                bytes=5,
                architecture="llama",
                quantization="Q4_1",
                context=2048,
                loaded=True,
                state="ready",
                default=True,
                problem="none",
            ),
        ),
    ),
    p.PluginsReply(
        id="p",
        plugins=(
            p.PluginInfo(
                name="paged",
                kind="kv",
                state="chosen",
                source="inferd",
                version="0.1.0",
                api="1.0",
                target="a:B",
                exactness="bit",
                why="first",
            ),
        ),
    ),
    p.Tokens(id="r", seq=2, ids=(5,), logprobs=(LOGPROB,), spelling={5: b"\xc3", 6: b"\x9f"}),
    p.TrafficReply(
        id="x",
        models=(
            p.TrafficReport(
                model="m",
                since=1.5,
                until=2.5,
                requests=2,
                prompt_tokens=40,
                cached_tokens=16,
                lengths=((17, 3, 2),),
                gaps_ms=((1000, 1),),
                reuse_percent=((0, 1), (90, 1)),
                ends={"stop": 2},
                recent=((0, 16, 3, 0),),
            ),
        ),
        enabled=False,
    ),
]
LATER_STATUS = p.StatusReply(
    seq=5,
    models=(p.ModelStatus(name="m", state="ready", stalled=True),),
    requests=(
        p.RequestStatus(
            id="r",
            client="c",
            model="m",
            state="prefill",
            prompt_tokens=9,
            output_tokens=0,
            age_s=0.5,
            done=4,
            cached_tokens=2,
            preemptions=1,
            priority=-3,
        ),
    ),
)
"""What later 1.x added to reports."""
COST = p.Cost(
    source="measured",
    currency="EUR",
    prefill=0.001,
    decode=0.002,
    per_million=3.5,
    joules=12.5,
    prefill_s=0.25,
    decode_s=0.5,
    good=False,
)
COSTED = p.Done(
    id="r",
    reason="length",
    finish=(p.Finish(choice=0, reason="length", seed=1),),
    usage=USAGE,
    timings=p.Timings(),
    cost=COST,
)
MEASURED_STATUS = p.StatusReply(
    seq=6,
    devices=(
        p.DeviceStatus(
            name="cuda:0",
            description="NVIDIA H100",
            memory=p.MemoryUse(weights=1, kv_used=2, kv_free=3, activations=4, process=5, other=6),
            utilization=0.5,
            power_w=350.5,
            temperature_c=55,
            problem="lost",
        ),
    ),
    models=(
        p.ModelStatus(
            name="m",
            state="ready",
            utilisation=p.Utilisation(
                prefill_flops_s=1.5,
                flops_ceiling=3.0,
                flops_format="int8",
                mfu=0.5,
                decode_bytes_s=2.5,
                bytes_ceiling=5.0,
                mbu=0.5,
                weight_share=0.75,
            ),
        ),
    ),
    cost=p.CostStatus(
        source="estimated",
        meters=("cost.watts_busy",),
        currency="EUR",
        watts=65.5,
        joules=1000.5,
        prefill=0.1,
        decode=0.2,
        idle=0.3,
        per_million=6.5,
        prefill_per_million=1.5,
        decode_per_million=2.0,
        idle_per_million=3.0,
        output_tokens=100,
        good_tokens=90,
    ),
)
EVENTS: list[p.Reply] = [
    STATUS,
    p.ModelEvent(seq=4, name="m", state="failed", detail="no shard 2"),
    LATER_STATUS,
    MEASURED_STATUS,
]
ANSWERS += [COSTED, p.MetricsReply(id="x", text="inferd_ready 1.0\n")]
CONTROL.append(p.Metrics(id="x"))

SIDES = {
    "data": (DATA, p.data_decoder),
    "control": (CONTROL, p.control_decoder),
    "answer": (ANSWERS, p.answer_decoder),
    "event": (EVENTS, p.event_decoder),
}


def record() -> dict[str, list[dict[str, object]]]:
    """Frames in hex beside what they say, by side."""
    return {
        side: [
            {"says": msgspec.to_builtins(message), "frames": [frame.hex() for frame in p.encode(message)]}
            for message in messages
        ]
        for side, (messages, _) in SIDES.items()
    }


if __name__ == "__main__":
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} exists: the frames of a version never change")
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(record(), indent=1, ensure_ascii=False, default=str) + "\n")
