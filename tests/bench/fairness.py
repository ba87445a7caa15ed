"""One client beside a thousand requests of another: `python -m tests.bench.fairness [--rounds N] [--json FILE]`.

Through the real daemon, in rounds of alone and beside. The figure is the ratio of the times to the first token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from inferd_client import Client
from tests.bench.harness import interval
from tests.e2e.harness import Served, eventually, ready, serving, the_model

MODEL = "smollm2-135m"
PROMPT_TOKENS = 1024
FLOOD = 1000
FLOOD_PROMPT, FLOOD_OUTPUT = 32, 32


@dataclass(frozen=True)
class Outcome:
    """Milliseconds to the first token, medians of all rounds, and their ratio with a 95 percent interval."""

    alone_ms: float
    beside_ms: float
    ratio: float
    low: float
    high: float
    rounds: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the outcome here as well")
    args = parser.parse_args()
    with serving(None, {"daemon": {"max_queue": 2 * FLOOD, "max_client_requests": 2 * FLOOD}}) as daemon:
        outcome = measure(daemon, args.rounds)
    print(
        f"TTFT of {PROMPT_TOKENS} tokens: alone {outcome.alone_ms:.0f} ms, beside {FLOOD} requests of another client "
        f"{outcome.beside_ms:.0f} ms; ratio {outcome.ratio:.2f} ({outcome.low:.2f} to {outcome.high:.2f})"
    )
    if args.json:
        args.json.write_text(json.dumps(asdict(outcome), indent=1))


def measure(daemon: Served, rounds: int) -> Outcome:
    """Alternate between an idle daemon and one with a flood; three requests each time."""
    rng, guest, flooder = random.Random(1), daemon.client("guest"), daemon.client("flood")
    ready(guest, MODEL)
    alone: list[float] = []
    beside: list[float] = []
    _ttft_ms(guest, rng)
    for _ in range(rounds):
        alone.append(statistics.median(_ttft_ms(guest, rng) for _ in range(3)))
        flood = [
            flooder.generate(_prompt(rng, FLOOD_PROMPT), stream=True, max_tokens=FLOOD_OUTPUT, ignore_eos=True)
            for _ in range(FLOOD)
        ]
        eventually(lambda: the_model(guest, MODEL).waiting > FLOOD / 2, lambda: the_model(guest, MODEL))
        beside.append(statistics.median(_ttft_ms(guest, rng) for _ in range(3)))
        if not the_model(guest, MODEL).waiting:
            raise RuntimeError("the flood was over before the guests were served")
        for stream in flood:
            stream.close()
        eventually(lambda: not the_model(guest, MODEL).running)
    ratios = [b / a for a, b in zip(alone, beside, strict=True)]
    low, high = interval(ratios)
    return Outcome(statistics.median(alone), statistics.median(beside), statistics.median(ratios), low, high, rounds)


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(100, 40000) for _ in range(length)]


def _ttft_ms(client: Client, rng: random.Random) -> float:
    started = time.monotonic()
    with client.generate(_prompt(rng, PROMPT_TOKENS), stream=True, max_tokens=2, ignore_eos=True) as stream:
        next(stream)
        return 1e3 * (time.monotonic() - started)


if __name__ == "__main__":
    main()
