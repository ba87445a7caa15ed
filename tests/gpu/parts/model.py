"""Whole models with random weights: throughput at 256 sequences, latency at one, prefill, fp8 against bf16, int8 KV."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from inferd.engine.offline import run as run_requests
from inferd.link import Submit
from inferd_client.protocol import SamplingParams
from tests.gpu.bench import Bench
from tests.gpu.goals import at_least, at_most, failure, row
from tests.gpu.parts.ceilings import copy_rate, matrix_rate
from tests.gpu.random_model import LLAMA3_8B, QWEN3_0_6B, TINY, Size, block_bytes, engine_of, random_decoder

if TYPE_CHECKING:
    from inferd.engine.engine import Engine
    from inferd.link import StepReport
    from inferd.model.decoder import Decoder
    from inferd.plugin.types import KVFormat

CARD = 24 << 30
"""Memory of the device that fp8 and bf16 weights are compared on: the batch is what fits beside them."""
CARD_SHARE, CARD_SCRATCH = 0.92, 3 << 29
POOL = 8 << 30
"""Bytes of KV in which sequences of 4k are counted."""


@dataclass(frozen=True)
class Ceilings:
    copies: float
    flops: float


def run(bench: Bench) -> dict[str, Any]:
    ceilings = Ceilings(copy_rate(bench), matrix_rate(bench))
    rows: list[dict[str, Any]] = []
    fp8: dict[bool, dict[str, float]] = {}
    measures = {
        "0.6B": lambda: small_model(bench, ceilings, rows),
        "8B bf16": lambda: fp8.update({False: large_model(bench, ceilings, rows, fp8=False)}),
        "8B fp8": lambda: fp8.update({True: large_model(bench, ceilings, rows, fp8=True)}),
        "4k sequences": lambda: long_sequences(bench, rows),
    }
    for name, measure in measures.items():
        if bench.mine() and bench.time_left > 15:
            print(name, flush=True)
            try:
                measure()
            except Exception as error:
                rows.append(failure(name, error))
            gc.collect()
            bench.free()
    if len(fp8) == 2:
        rows += compare(fp8[False], fp8[True])
    return {"copy_bytes_s": ceilings.copies, "bf16_flop_s": ceilings.flops, "rows": rows}


@dataclass
class Phases:
    """Wall time and tokens by what steps did: any prefill, or decoding alone."""

    prefill_s: float = 0.0
    prefill_tokens: int = 0
    decode_s: float = 0.0
    decode_tokens: int = 0
    most_running: int = 0
    last: float = field(default_factory=time.perf_counter)

    def note(self, report: StepReport) -> None:
        now, stats = time.perf_counter(), report.stats
        if stats.prefill_tokens:
            self.prefill_s += now - self.last
            self.prefill_tokens += stats.prefill_tokens
        else:
            self.decode_s += now - self.last
            self.decode_tokens += stats.decode_tokens
        self.most_running = max(self.most_running, stats.running)
        self.last = now

    @property
    def prefill_rate(self) -> float:
        return self.prefill_tokens / max(self.prefill_s, 1e-9)

    @property
    def decode_rate(self) -> float:
        return self.decode_tokens / max(self.decode_s, 1e-9)


def requests(vocab: int, lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[Submit]:
    """Random prompts of the given prompt and output lengths, sampled as nano-vllm's bench samples."""
    rng = random.Random(seed)
    return [
        Submit(
            key=f"{i}",
            client="c",
            prompt=[rng.randrange(vocab) for _ in range(prompt)],
            sampling=SamplingParams(temperature=0.6, seed=i, max_tokens=output),
        )
        for i, (prompt, output) in enumerate(lengths)
    ]


def uniform(count: int, low: int, high: int, seed: int = 0) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randint(low, high), rng.randint(low, high)) for _ in range(count)]


def timed(engine: Engine, asked: list[Submit]) -> tuple[float, Phases]:
    """Run requests to their end; return output tokens a second, and the phases."""
    start, phases = time.perf_counter(), Phases()
    results = run_requests(engine, asked, on_step=phases.note)
    seconds = time.perf_counter() - start
    for result in results.values():
        if result.error is not None:
            raise RuntimeError(result.error.message)
    return sum(len(result.ids) for result in results.values()) / seconds, phases


def warm_up(engine: Engine, vocab: int, sequences: int) -> None:
    """Capture every bucket: sequences end a few at a time, the last ones one by one."""
    lengths = [(20, 2 + i // 8 if i >= 8 else 3 + sequences // 8 + i) for i in range(sequences)]
    timed(engine, requests(vocab, lengths, seed=1))


@contextmanager
def engine(bench: Bench, decoder: Decoder, **sizes: Any) -> Iterator[Engine]:
    """An engine around a decoder; its graphs and KV pool are gone afterwards."""
    kinds: dict[str, Any] = {"kv_format": "fp32" if bench.dry else "bf16"}
    made = engine_of(decoder, bench.device, **(kinds | sizes))
    try:
        yield made
    finally:
        made.close()
        del made
        gc.collect()
        bench.free()


def shaped(bench: Bench, size: Size) -> Size:
    """A rehearsal compiles the same kernels with one layer."""
    return TINY if bench.dry else replace(size, layers=1) if bench.rehearsal else size


def small_model(bench: Bench, ceilings: Ceilings, rows: list[dict[str, Any]]) -> None:
    size, context = shaped(bench, QWEN3_0_6B), bench.size(4096, 64)
    decoder = random_decoder(size, bench.device, bench.dtype, context)
    sequences, budget = bench.size(256, 10), bench.size(16384, 64)
    with engine(
        bench, decoder, sequences=sequences, context=context, blocks=bench.size(24000, 80), budget=budget
    ) as many:
        warm_up(many, size.vocab, sequences)
        draws = uniform(sequences, bench.size(100, 3), bench.size(1024, 9))
        rate, phases = timed(many, requests(size.vocab, draws[:8] if bench.rehearsal else draws))
        goal = at_least(21000, 25000)
        rows.append(row("0.6B, 256 sequences (nano-vllm's bench)", rate, "tokens/s", goal))
        rows.append(row("0.6B, 256 sequences, steps with prefill", phases.prefill_rate, "prompt tokens/s"))
        rows.append(row("0.6B, 256 sequences, steps without", phases.decode_rate, "tokens/s"))
    latency: dict[bool, float] = {}
    for graphs in (True, False):
        with engine(
            bench, decoder, sequences=1, context=context, blocks=bench.size(600, 8), budget=budget, graphs=graphs
        ) as one:
            short = requests(size.vocab, [(4, bench.size(256, 3))])
            timed(one, short)
            latency[graphs] = timed(one, short)[1].decode_rate
            if graphs:
                prefill_rows(bench, one, size, "0.6B", bench.size(4000, 9), ceilings, rows)
    rows.append(row("0.6B, one sequence", latency[True], "tokens/s", at_least(600)))
    rows.append(row("0.6B, one sequence, graphs over eager", latency[True] / latency[False], "times", at_least(2.5)))
    rows.append(
        row("0.6B, one sequence", read_bytes(decoder, size) * latency[True] / ceilings.copies, "copy bandwidth")
    )


def large_model(bench: Bench, ceilings: Ceilings, rows: list[dict[str, Any]], *, fp8: bool) -> dict[str, float]:
    """One sequence, a long prompt, and the batch that fits beside the weights on a card of 24 GiB."""
    size, context, name = shaped(bench, LLAMA3_8B), bench.size(8192, 64), "8B fp8" if fp8 else "8B bf16"
    decoder = random_decoder(size, bench.device, bench.dtype, context, fp8=fp8)
    tables = (1 if size.tied else 2) * size.table_weights * bench.dtype.itemsize
    found = {"weights": float(decoder.weight_bytes), "layers": float(decoder.weight_bytes - tables)}
    a_block = block_bytes(decoder, "fp32" if bench.dry else "bf16")
    tokens = int(CARD * CARD_SHARE - CARD_SCRATCH - found["weights"]) // a_block * 16
    sequences = 2 if bench.dry else 16 if bench.rehearsal else tokens // 1024
    blocks = max(sequences, 8) * bench.size(64, 4) + 8
    with engine(
        bench, decoder, sequences=sequences, context=context, blocks=blocks, budget=bench.size(8192, 64)
    ) as made:
        short = requests(size.vocab, [(8, bench.size(128, 3))])
        timed(made, short)
        found["one sequence"] = timed(made, short)[1].decode_rate
        share = read_bytes(decoder, size) * found["one sequence"] / ceilings.copies
        rows.append(row(f"{name}, one sequence", found["one sequence"], "tokens/s"))
        rows.append(row(f"{name}, one sequence", share, "copy bandwidth"))
        length = bench.size(8000, 9)
        found[f"prefill of {length}"] = prefill_rows(bench, made, size, name, length, ceilings, rows)
        full = [(bench.size(768, 9), bench.size(256, 4))] * sequences
        warm_up(made, size.vocab, sequences)
        _rate, phases = timed(made, requests(size.vocab, full))
        found["decode of the batch that fits"] = phases.decode_rate
        found["prefill of the batch that fits"] = phases.prefill_rate
        label = f"{name}, {sequences} sequences of 1024 (what fits 24 GiB)"
        rows.append(row(f"{label}: decode", phases.decode_rate, "tokens/s"))
        rows.append(row(f"{label}: prefill", phases.prefill_rate, "tokens/s"))
    return found


def prefill_rows(
    bench: Bench,
    made: Engine,
    size: Size,
    name: str,
    length: int,
    ceilings: Ceilings,
    rows: list[dict[str, Any]],
) -> float:
    """Time one long prompt; return tokens a second. Its work: weights once a token, causal attention once."""
    asked = requests(size.vocab, [(length, 1)])
    timed(made, asked)
    rate = length * timed(made, asked)[0]  # one output token: a step may be started before another is counted
    work = 2 * size.layer_weights * length + 2 * size.layers * size.heads * size.width * length**2
    rows.append(row(f"{name}, prefill of {length}", rate, "tokens/s"))
    rows.append(row(f"{name}, prefill of {length}", work * rate / length / ceilings.flops, "bf16 matrix rate"))
    return rate


def read_bytes(decoder: Decoder, size: Size) -> int:
    """Bytes of weights that a decode step reads: of an embedding apart only a row."""
    return decoder.weight_bytes - (0 if size.tied else size.table_weights * decoder.dtype.itemsize)


def compare(bf16: dict[str, float], fp8: dict[str, float]) -> list[dict[str, Any]]:
    """fp8 over bf16."""
    rows = [
        row("8B weights of the layers, fp8 over bf16", fp8["layers"] / bf16["layers"], "times", at_most(0.53)),
        row("8B weights with embedding and output in bf16, fp8 over bf16", fp8["weights"] / bf16["weights"], "times"),
    ]
    labels = [label for label in bf16 if label not in ("layers", "weights")]
    return rows + [
        row(
            f"8B {label}, fp8 over bf16",
            fp8[label] / bf16[label],
            "times",
            at_least(1.5) if "that fits" in label else None,
        )
        for label in labels
    ]


def long_sequences(bench: Bench, rows: list[dict[str, Any]]) -> None:
    """Count the sequences of 4k that run at once in the same bytes of KV, bf16 and int8."""
    size, context = shaped(bench, QWEN3_0_6B), bench.size(4224, 64)
    decoder = random_decoder(size, bench.device, bench.dtype, context)
    wide: KVFormat = "fp32" if bench.dry else "bf16"
    running: dict[str, int] = {}
    rates: dict[str, float] = {}
    for kind in (wide, "int8"):
        pool = 9 * block_bytes(decoder, wide) if bench.dry else POOL // 28 if bench.rehearsal else POOL
        with engine(
            bench,
            decoder,
            sequences=bench.size(64, 6),
            context=context,
            blocks=pool // block_bytes(decoder, kind),
            budget=bench.size(16384, 64),
            kv_format=kind,
        ) as made:
            asked = [(bench.size(4000, 40), bench.size(96, 4))] * bench.size(4 if bench.rehearsal else 56, 6)
            rates[kind], phases = timed(made, requests(size.vocab, asked))
            running[kind] = phases.most_running
        rows.append(row(f"sequences of 4k at once in 8 GiB of KV, {kind}", running[kind], "sequences"))
    ratio = running["int8"] / running[wide]
    rows.append(row("sequences of 4k in the same memory, int8 over bf16 KV", ratio, "times", at_least(1.8)))
    rows.append(row("their throughput with prefill, int8 over bf16 KV", rates["int8"] / rates[wide], "times"))
