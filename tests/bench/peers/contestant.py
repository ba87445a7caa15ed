"""What is measured, and the contract of those who are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["prompt512", "prompt2048", "decode0", "decode2048", "batch8", "batch32", "served", "cold"]

PARTS: tuple[Part, ...] = (
    "prompt512",
    "prompt2048",
    "decode0",
    "decode2048",
    "batch8",
    "batch32",
    "served",
    "cold",
)
FRESH: tuple[Part, ...] = ("batch32", "served", "cold")
"""Parts that start processes of their own."""
PROMPTS: Mapping[Part, int] = {"prompt512": 512, "prompt2048": 2048}
CONTEXTS: Mapping[Part, int] = {"decode0": 0, "decode2048": 2048}
BATCHES: Mapping[Part, int] = {"batch8": 8, "batch32": 32}
DECODED = 64
"""Tokens of a decode part."""
PROMPT, OUTPUT = 128, 128
"""Of each sequence in the batch and served parts."""
ARRIVALS, RATE = 32, 2.0
"""Requests of the served part, and how many a second."""
COLD_PROMPT = 16


@dataclass(frozen=True)
class Metric:
    title: str
    unit: str
    higher_is_better: bool


def _rate(title: str) -> Metric:
    return Metric(title, "tokens/s", True)


METRICS: dict[str, Metric] = {
    "prompt512": _rate("prompt of 512"),
    "prompt2048": _rate("prompt of 2048"),
    "decode0": _rate("decode, batch 1, context 0"),
    "decode2048": _rate("decode, batch 1, context 2048"),
    "batch8": _rate("8 sequences, decode"),
    "batch8 total": _rate("8 sequences, prompts included"),
    "batch32": _rate("32 sequences, decode"),
    "batch32 total": _rate("32 sequences, prompts included"),
    "batch32 memory": Metric("32 sequences, peak memory", "MB", False),
    "TTFT p50": Metric("served, TTFT p50", "ms", False),
    "TTFT p95": Metric("served, TTFT p95", "ms", False),
    "TPOT p50": Metric("served, TPOT p50", "ms", False),
    "TPOT p95": Metric("served, TPOT p95", "ms", False),
    "served memory": Metric("served, peak memory of all processes", "MB", False),
    "cold start": Metric("first token from nothing", "s", False),
    "load": Metric("first token of a load in a running daemon", "s", False),
}


class Contestant(ABC):
    """One program on one model file."""

    product: str
    file: str
    """Format of the weights."""
    parts: tuple[Part, ...] = PARTS
    """What it can be asked for."""

    @property
    def name(self) -> str:
        return f"{self.product} {self.file}"

    @abstractmethod
    def measure(self, part: Part, seed: int) -> dict[str, float]:
        """Run a part once and return the values of its metrics."""

    def close(self) -> None:
        """End what is still running."""
