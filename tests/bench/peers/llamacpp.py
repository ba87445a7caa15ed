"""llama.cpp: its own benchmark programs, a process each, and its server over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from inferd.bench.memory import peak_bytes
from inferd.bench.workloads import prompts
from tests.bench.peers.contestant import (
    ARRIVALS,
    BATCHES,
    COLD_PROMPT,
    CONTEXTS,
    DECODED,
    OUTPUT,
    PROMPT,
    PROMPTS,
    Contestant,
    Part,
)
from tests.bench.peers.http_stream import free_port, stream_completion
from tests.bench.peers.trace import VOCAB, play, summary

START_S = 120.0
SLACK = 32
"""Tokens of context beside prompt and answer."""


class LlamaCpp(Contestant):
    product = "llama.cpp"

    def __init__(self, tools: Path, path: Path, file: str, threads: int) -> None:
        self._tools = tools
        self._path = path
        self._threads = threads
        self.file = file

    def measure(self, part: Part, seed: int) -> dict[str, float]:
        if part in PROMPTS:
            return {part: self._bench("-p", PROMPTS[part], "-n", 0)}
        if part in CONTEXTS:
            return {part: self._bench("-p", 0, "-n", DECODED, "-d", CONTEXTS[part])}
        if part in BATCHES:
            return self._batched(part, BATCHES[part])
        return self._served(seed) if part == "served" else self._cold(seed)

    def _bench(self, *options: object) -> float:
        ended = self._run("llama-bench", "-r", 1, "-o", "json", *options)
        (row,) = json.loads(ended.output)
        return row["avg_ts"]

    def _batched(self, part: Part, count: int) -> dict[str, float]:
        context = count * (PROMPT + OUTPUT + SLACK)
        sizes = ("-c", context, "-npp", PROMPT, "-ntg", OUTPUT, "-npl", count)
        ended = self._run("llama-batched-bench", "--output-format", "jsonl", *sizes)
        row = next(json.loads(line) for line in ended.output.splitlines() if line.startswith("{"))
        memory = {"batch32 memory": ended.peak / 1e6} if part == "batch32" else {}
        return {part: row["speed_tg"], f"{part} total": count * OUTPUT / row["t"]} | memory

    def _served(self, seed: int) -> dict[str, float]:
        context = ARRIVALS * (PROMPT + OUTPUT + SLACK)
        with self._server("-np", ARRIVALS, "-c", context) as (process, port):
            first = prompts(seed + 1, VOCAB, [COLD_PROMPT])[0]
            asyncio.run(_first_token(port, first, time.monotonic() + START_S))
            times = asyncio.run(play(seed, lambda ids, output: stream_completion(port, ids, output)))
            return summary(times) | {"served memory": peak_bytes(process.pid) / 1e6}

    def _cold(self, seed: int) -> dict[str, float]:
        started = time.monotonic()
        with self._server("-np", 1, "-c", 4096) as (_, port):
            ids = prompts(seed, VOCAB, [COLD_PROMPT])[0]
            asyncio.run(_first_token(port, ids, started + START_S))
            return {"cold start": time.monotonic() - started}

    @contextmanager
    def _server(self, *options: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        port = free_port()
        command = self._command("llama-server", "--host", "127.0.0.1", "--port", port, "--no-webui", *options)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process, port
        finally:
            process.terminate()
            process.wait()

    def _command(self, tool: str, *options: object) -> list[str]:
        return [str(word) for word in (self._tools / tool, "-m", self._path, "-t", self._threads, *options)]

    def _run(self, tool: str, *options: object) -> _Ended:
        command = self._command(tool, *options)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        return _Ended(output, usage.ru_maxrss * 1024)


class _Ended(NamedTuple):
    output: str
    peak: int
    """Most resident bytes."""


async def _first_token(port: int, ids: list[int], until: float) -> None:
    """Ask for one token until the server answers."""
    while True:
        try:
            async for _ in stream_completion(port, ids, 1):
                return
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.01)
