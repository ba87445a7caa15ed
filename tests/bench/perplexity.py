"""Perplexity of the CPU path against float32 of the same weights: `python -m tests.bench.perplexity`.

The text (`passage.txt`, written for this, or files of yours) goes through the engine as prompts, whose
log-probabilities are those of the model itself. The baseline multiplies dequantised float32 weights and keeps keys and
values in float32; every variant says which settings it changes. Within 0.3 percent of the baseline counts as equal.
Rounding moves a token either way, so the change of the mean comes with the standard error that so many tokens leave.

    python -m tests.bench.perplexity
    python -m tests.bench.perplexity --text tests/bench/passage.txt ARCHITECTURE.md
    python -m tests.bench.perplexity --variant 'int8 KV=engine.kv_format=int8' --variant 'torch bf16=engine.dtype=bf16'
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferd.config.layers import load_config, parse_setting
from inferd.config.paths import RuntimePaths
from inferd.engine.build import build_engine
from inferd.engine.offline import run
from inferd.engine.settings import WorkerSettings
from inferd.link import Submit
from inferd.load.errors import LoadError
from inferd.load.store import Store
from inferd.load.vocab import open_vocabulary
from inferd.plugin.errors import PluginError
from inferd_client.protocol import SamplingParams

TEXT = Path(__file__).with_name("passage.txt")
BOUND = 0.003
FLOAT32 = ("engine.linear=torch", "engine.dtype=fp32", "engine.kv_format=fp32", "plugins.attention=torch")
NATIVE = ("engine.linear=native", "plugins.attention=cpu")
VARIANTS: Mapping[str, Sequence[str]] = {
    "as configured": (),
    "native, fp32 KV": (*NATIVE, "engine.kv_format=fp32"),
    "native, bf16 KV": (*NATIVE, "engine.kv_format=bf16"),
    "native, fp16 KV": (*NATIVE, "engine.kv_format=fp16"),
    "native, int8 KV": (*NATIVE, "engine.kv_format=int8"),
    "native, fp8 KV": (*NATIVE, "engine.kv_format=fp8"),
}


@dataclass(frozen=True)
class Score:
    """What one variant makes of the text."""

    variant: str
    tokens: int
    perplexity: float
    against_float32: float
    """Its perplexity over the baseline's, less 1."""
    standard_error: float
    """Of `against_float32`, by the spread of the tokens' differences."""
    divergence: float
    """Mean absolute difference of a token's log-probability from the baseline's, in nat."""

    @property
    def verdict(self) -> str:
        """Judge by the bound, where two standard errors do not reach across it from beyond."""
        beyond = abs(self.against_float32) - BOUND
        if beyond <= 0:
            return "within 0.3 %"
        return "beyond 0.3 %" if beyond > 2 * self.standard_error else "too little text to tell"


def windows(path: Path, text: str, length: int) -> list[list[int]]:
    """Cut the tokens of a text into prompts of `length`; the rest is dropped."""
    ids = open_vocabulary(path).encode(text)
    return [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]


def logprobs(path: Path, settings: Sequence[str], prompts: Sequence[list[int]]) -> list[float]:
    """Return the log-probability of every token but the first of each prompt.

    Raises LoadError, PluginError or ValueError when the model cannot be built so.
    """
    config = load_config(overrides=dict(map(parse_setting, settings))).config
    engine, _ = build_engine(WorkerSettings(name="perplexity", path=str(path), config=config))
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, seed=1)
    requests = [Submit(key=f"r{i}", client="bench", prompt=ids, sampling=sampling) for i, ids in enumerate(prompts)]
    results = run(engine, requests)
    engine.close()
    found: list[float] = []
    for request in requests:
        result = results[request.key, 0]
        if result.error:
            raise ValueError(result.error.message)
        found += [token.logprob for token in result.prompt_logprobs if token is not None]
    assert len(found) == sum(len(ids) - 1 for ids in prompts)
    return found


def compare(path: Path, variants: Mapping[str, Sequence[str]], prompts: Sequence[list[int]]) -> Iterator[Score]:
    """Yield the baseline and every variant that this installation can build; say why of the others."""
    base = logprobs(path, FLOAT32, prompts)
    yield _score("float32", base, base)
    for name, settings in variants.items():
        try:
            found = logprobs(path, settings, prompts)
        except (LoadError, PluginError, ValueError) as error:
            print(f"{name}: not measured: {str(error).splitlines()[0][:300]}", file=sys.stderr)
            continue
        yield _score(name, found, base)


def _score(name: str, found: Sequence[float], base: Sequence[float]) -> Score:
    differences = [a - b for a, b in zip(found, base, strict=True)]
    change = math.expm1(-statistics.fmean(differences))
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    divergence = statistics.fmean(map(abs, differences))
    return Score(name, len(found), math.exp(-statistics.fmean(found)), change, error, divergence)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a model of the store, or a path")
    parser.add_argument("--text", type=Path, nargs="+", default=[TEXT])
    parser.add_argument("--window", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--variant", action="append", metavar="NAME=KEY=VALUE[,KEY=VALUE...]", help="in place of all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    path = Store(RuntimePaths.of(load_config().config).models).resolve(options.model)
    prompts = [prompt for text in options.text for prompt in windows(path, text.read_text(), options.window)]
    variants = dict(map(_variant, options.variant)) if options.variant else VARIANTS
    print(
        "| weights and KV | tokens | perplexity | against float32 (standard error) | mean difference a token, nat | |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    scores: list[Any] = []
    for score in compare(path, variants, prompts):
        print(
            f"| {score.variant} | {score.tokens} | {score.perplexity:.4f} | {100 * score.against_float32:+.3f} % "
            f"({100 * score.standard_error:.3f}) | {score.divergence:.5f} | {score.verdict} |",
            flush=True,
        )
        scores.append(asdict(score))
    if options.json:
        options.json.write_text(json.dumps({"model": path.name, "scores": scores}, indent=1) + "\n")
    return 0


def _variant(text: str) -> tuple[str, list[str]]:
    name, _, settings = text.partition("=")
    return name, settings.split(",")


if __name__ == "__main__":
    sys.exit(main())
