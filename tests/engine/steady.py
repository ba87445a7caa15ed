"""A small engine on the native kernels, and rows that ask for all that a native step does by itself."""

from __future__ import annotations

from pathlib import Path

from inferd.config import schema
from inferd.engine.build import build_engine
from inferd.engine.engine import Engine
from inferd.engine.settings import WorkerSettings
from inferd_client.protocol import SamplingParams
from tests.tiny import tiny_gguf

PROMPT = [9, 11]
"""After a first token of each row's own."""
ROWS = [
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True, seed=1),
    SamplingParams(temperature=1.1, top_k=20, top_p=0.9, min_p=0.01, max_tokens=60, ignore_eos=True, seed=2),
    SamplingParams(
        temperature=0.9,
        top_p=0.9,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        logit_bias={7: 1.5},
        allowed_token_ids=tuple(range(5, 60)),
        bad_words=("a",),
        max_tokens=60,
        ignore_eos=True,
        seed=3,
    ),
]


def tiny_engine(folder: Path) -> Engine:
    """Load a tiny model; `folder` gets its file."""
    config = schema.Config(
        engine=schema.Engine(max_sequences=6, linear="native", block_size=16, max_context=128),
        plugins=schema.Plugins(attention="cpu"),
    )
    engine, card = build_engine(WorkerSettings(name="tiny", path=str(tiny_gguf(folder)), config=config))
    assert card.eager_because == ""
    return engine
