"""inferd: its engine in a child process for what is offline, its daemon over ZeroMQ for the rest."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import tomlkit

from inferd.bench.lines import LineChild
from inferd.bench.memory import peak_bytes
from inferd.bench.workloads import prompts
from inferd.config.layers import load_config, parse_setting
from inferd.engine.settings import WorkerSettings
from inferd_client import AsyncClient, Client
from tests.bench.peers.contestant import (
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
from tests.bench.peers.trace import VOCAB, play, summary

SETTLE_S = 5.0
"""For a daemon without a model to prepare what it prepares while it waits."""


class Inferd(Contestant):
    product = "inferd"

    def __init__(self, path: Path, file: str, settings: Sequence[str], label: str = "") -> None:
        """`settings` are KEY=VALUE as of `inferd --set`; a label tells variants apart."""
        self._path = path
        self._settings = settings
        self.file = f"{file} {label}".strip()
        self._folder = Path(tempfile.mkdtemp(prefix="infb"))
        self._child: LineChild | None = None

    def measure(self, part: Part, seed: int) -> dict[str, float]:
        if part in PROMPTS:
            return {part: self._ask("prefill", seed, prompt=PROMPTS[part])["value"]}
        if part in CONTEXTS:
            return {part: self._ask("decode", seed, context=CONTEXTS[part], output=DECODED)["value"]}
        if part in BATCHES:
            return self._batched(part, seed, BATCHES[part])
        return self._served(seed) if part == "served" else self._cold(seed)

    def _batched(self, part: Part, seed: int, count: int) -> dict[str, float]:
        if part == "batch32":
            self._end_child()  # so that its peak of memory is its own
        answer = self._ask("batched", seed, count=count, prompt=PROMPT, output=OUTPUT)
        memory = {"batch32 memory": answer["peak"] / 1e6} if part == "batch32" else {}
        return {part: answer["value"]["decode"], f"{part} total": answer["value"]["total"]} | memory

    def _ask(self, phase: str, seed: int, **sizes: int) -> dict:
        if self._child is None:
            file = self._folder / "settings.json"
            config = load_config(overrides=dict(map(parse_setting, self._settings))).config
            WorkerSettings(name="bench", path=str(self._path), config=config).save(file)
            self._child = LineChild([sys.executable, "-m", "inferd.bench.child", file])
            self._child.ask({"phase": "decode", "seed": seed, "context": COLD_PROMPT, "output": 4})
        return self._child.ask({"phase": phase, "seed": seed, **sizes})

    def _served(self, seed: int) -> dict[str, float]:
        with self._daemon(preload=True) as (pid, runtime):
            asyncio.run(_stream_one(runtime, prompts(seed + 1, VOCAB, [COLD_PROMPT])[0]))
            seen = asyncio.run(_play(runtime, seed))
            family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            memory = sum(map(peak_bytes, family))
            return summary(seen) | {"served memory": memory / 1e6}

    def _cold(self, seed: int) -> dict[str, float]:
        ids = prompts(seed, VOCAB, [COLD_PROMPT])[0]
        started = time.monotonic()
        with self._daemon(preload=True) as (_, runtime):
            asyncio.run(_stream_one(runtime, ids))
            cold = time.monotonic() - started
        with self._daemon(preload=False) as (_, runtime), Client(runtime, wait_for_daemon=True) as client:
            client.status()
            time.sleep(SETTLE_S)
            started = time.monotonic()
            client.generate(ids, model=str(self._path), max_tokens=1)
            return {"cold start": cold, "load": time.monotonic() - started}

    @contextmanager
    def _daemon(self, *, preload: bool) -> Iterator[tuple[int, Path]]:
        """Run `inferd serve` in the folder; yield its pid and where its sockets are."""
        runtime = self._folder / "run"
        file = self._folder / "config.toml"
        file.write_text(tomlkit.dumps({"preload": preload, "daemon": {"drain_s": 1.0}}))
        settings = [word for setting in self._settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "inferd.cli.main", "--runtime", str(runtime), *settings]
        model = [str(self._path)] if preload else []
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "serve", "--config", str(file), *model], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield process.pid, runtime
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def close(self) -> None:
        self._end_child()
        shutil.rmtree(self._folder, ignore_errors=True)


async def _stream_one(runtime: Path, ids: Sequence[int]) -> None:
    async with AsyncClient(runtime, wait_for_daemon=True) as client:
        async for _ in client.generate(list(ids), max_tokens=1, stream=True):
            return


async def _play(runtime: Path, seed: int) -> list:
    async with AsyncClient(runtime) as client:

        async def stream(ids: Sequence[int], output: int) -> AsyncIterator[int]:
            options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": output}
            async for piece in client.generate(list(ids), stream=True, **options):
                if piece.ids:
                    yield len(piece.ids)

        return await play(seed, stream)
