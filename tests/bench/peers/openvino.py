"""OpenVINO GenAI reading the same GGUF file, in an interpreter of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from inferd.bench.lines import LineChild
from inferd.bench.workloads import prompts
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
from tests.bench.peers.trace import VOCAB

CHILD = Path(__file__).with_name("openvino_child.py")


class OpenVino(Contestant):
    """It has no server of its own that takes token ids, so it is not served."""

    product = "OpenVINO"
    parts = ("prompt512", "prompt2048", "decode0", "decode2048", "batch8", "batch32", "cold")

    def __init__(self, python: Path, path: Path, file: str, threads: int) -> None:
        self._command = (python, "-P", CHILD, path, threads)  # its folder has an `openvino` of its own
        self.file = file
        self._child: LineChild | None = None

    def measure(self, part: Part, seed: int) -> dict[str, float]:
        if part in PROMPTS:
            prompt = PROMPTS[part]
            return {part: prompt / self._ask(seed, 1, prompt, 1)["seconds"]}
        if part in CONTEXTS:
            return {part: 1 / self._ask(seed, 1, max(1, CONTEXTS[part]), DECODED)["tpot"]}
        if part in BATCHES:
            return self._batched(part, seed, BATCHES[part])
        return self._cold(seed)

    def _batched(self, part: Part, seed: int, count: int) -> dict[str, float]:
        if part == "batch32":
            self.close()  # so that its peak of memory is its own
            self._ask(seed, 1, COLD_PROMPT, 4)
        first = self._ask(seed, count, PROMPT, 1)
        whole = self._ask(seed + 1, count, PROMPT, OUTPUT)
        memory = {"batch32 memory": whole["peak"] / 1e6} if part == "batch32" else {}
        decode = count * (OUTPUT - 1) / (whole["seconds"] - first["seconds"])
        return {part: decode, f"{part} total": count * OUTPUT / whole["seconds"]} | memory

    def _cold(self, seed: int) -> dict[str, float]:
        started = time.monotonic()
        child = LineChild(self._command)
        child.ask({"prompts": prompts(seed, VOCAB, [COLD_PROMPT]), "output": 1})
        seconds = time.monotonic() - started
        child.close()
        return {"cold start": seconds}

    def _ask(self, seed: int, count: int, prompt: int, output: int) -> dict[str, Any]:
        if self._child is None:
            self._child = LineChild(self._command)
            self._child.ask({"prompts": prompts(seed, VOCAB, [COLD_PROMPT]), "output": 4})
        return self._child.ask({"prompts": prompts(seed, VOCAB, [prompt] * count), "output": output})

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
