"""An engine in a process of its own: `python -m inferd.bench.child SETTINGS`, asked and answering in JSON lines.

SETTINGS is a file as `WorkerSettings.save` writes it. The first line out is `{"ready": ...}`; each line in is
`{"phase": "prefill" | "decode" | "batched" | "mixed", "seed": N, ...}` with the keywords of that function of
`phases`, each line out what it returned, under "value", and the peak of resident bytes so far under "peak".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from inferd.bench.memory import peak_bytes
from inferd.engine.settings import WorkerSettings
from inferd.engine.worker import limit_threads

if TYPE_CHECKING:
    from inferd.engine.engine import Engine

PHASES = ("prefill", "decode", "batched", "mixed")


def main(settings_file: str, asked: TextIO, answers: TextIO) -> None:
    """Load, then answer until `asked` ends."""
    settings = WorkerSettings.load(Path(settings_file))
    limit_threads(settings.config.engine.threads)
    from inferd.engine.build import build_engine

    engine, card = build_engine(settings)
    _say(answers, {"ready": card.shape, "exactness": card.exactness, "eager_because": card.eager_because})
    vocab_size = card.vocab_size
    del card  # the bytes of all tokens, as a worker does
    for line in asked:
        question = json.loads(line)
        value = _measure(engine, vocab_size, **question)
        _say(answers, {"value": value, "peak": peak_bytes()})
    engine.close()


def _measure(engine: Engine, vocab: int, *, phase: str, seed: int, **sizes: int) -> Any:
    from inferd.bench import phases

    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}; known: {', '.join(PHASES)}")
    value = getattr(phases, phase)(engine, vocab, seed, **sizes)
    return value if isinstance(value, float) else value._asdict()


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin, sys.stdout)
