"""Every member of every contract through the daemon: the same prompts, the same ids, and the status says which ran."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inferd_client import Client, PluginFailed
from inferd_client.protocol import ModelStatus
from inferd_client.results import Completion
from inferd_kernels.cpu.library import load, why_missing
from tests.e2e import oracle
from tests.e2e.harness import Served, eventually, idle, model_of, ready, serving, the_model
from tests.equivalence.models import NEW_TOKENS, PROMPTS
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen2

pytestmark = pytest.mark.daemon

BASE = {
    "architecture": "llama",
    "parallel": "single",
    "quantizer": "none",
    "kv": "paged",
    "attention": "cpu",
    "draft": "none",
}
PINNED = ("parallel", "kv", "attention", "draft")
BLOCKS = 120
TYPES = {
    **{f"blk.0.{name}.weight": kind for name, kind in (("attn_q", "Q4_K"), ("attn_k", "Q5_1"), ("attn_v", "Q6_K"))},
    **{f"blk.0.{name}.weight": kind for name, kind in (("ffn_gate", "Q5_K"), ("ffn_up", "Q4_1"), ("ffn_down", "Q5_0"))},
    **{f"blk.1.{name}.weight": kind for name, kind in (("attn_q", "BF16"), ("attn_k", "F16"), ("attn_v", "Q4_0"))},
    **{f"blk.1.{name}.weight": kind for name, kind in (("ffn_gate", "Q6_K"), ("ffn_up", "Q4_K"), ("ffn_down", "F32"))},
    "token_embd.weight": "Q8_0",
    "output.weight": "Q6_K",
}
"""Every GGUF type there is, in one file."""


def _rounded() -> str:
    """To what the native kernels of this machine round the rows of a model with `TYPES`."""
    return "integers and bf16" if not why_missing() and load().multiplies_bf16 else "integers"


@dataclass(frozen=True)
class Lineup:
    """A model that is served with a set of levers, and the signs by which they are known to have run."""

    model: str = "llama"
    plugins: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    exactness: str = "token"
    rounding: float = 0.0
    """Leads over the largest logit that rounded activations may turn."""
    by: str = "kv paged"
    signs: Callable[[Client, ModelStatus, list[Completion]], bool] = lambda _client, _status, _answers: True


def _drafted(_client: Client, _status: ModelStatus, answers: list[Completion]) -> bool:
    return sum(a.usage.drafted_tokens for a in answers if a.usage) > 0


def _prefix_was_cached(client: Client, _status: ModelStatus, answers: list[Completion]) -> bool:
    again = client.generate(PROMPTS[-1], model="paged", temperature=0, max_tokens=1)
    assert again.usage is not None
    return again.usage.cached_tokens >= 16 and again.ids == answers[-1].ids[:1]


def _no_cache(_client: Client, status: ModelStatus, _answers: list[Completion]) -> bool:
    return status.kv_bytes is not None and status.shape["num_blocks"] == BLOCKS


def _twice_the_kv(_client: Client, status: ModelStatus, _answers: list[Completion]) -> bool:
    # 2 layers, K and V, 4 heads (the model has 2 KV heads) of 16, float32.
    return status.kv_bytes == BLOCKS * status.shape["block_size"] * 2 * 2 * 4 * 16 * 4


LINEUPS = {
    "paged": Lineup(signs=_prefix_was_cached),
    "reference": Lineup(
        plugins={"attention": "reference", "kv": "contiguous", "draft": "ngram"},
        by="draft ngram",
        signs=_drafted,
    ),
    "recompute": Lineup(plugins={"kv": "recompute", "attention": "reference"}, by="kv recompute", signs=_no_cache),
    "static": Lineup(
        plugins={"kv": "contiguous", "attention": "reference"},
        engine={"batching": "static", "expand_gqa": True},
        exactness="bit",
        by="",
        signs=_twice_the_kv,
    ),
    "layers": Lineup(plugins={"parallel": "layers", "draft": "ngram"}, by="kv paged, draft ngram"),
    "qwen": Lineup(model="qwen2", plugins={"draft": "ngram"}, by="kv paged, draft ngram"),
    "types": Lineup(
        model="gguf",
        exactness="approximate",
        rounding=0.05,
        by=f"engine.linear (activations rounded to {_rounded()}), engine.kv_format (keys and values kept as bf16)",
    ),
    "torch": Lineup(
        model="gguf",
        plugins={"attention": "torch"},
        engine={"linear": "torch"},
        by="kv paged, attention torch",
    ),
}


@pytest.fixture(scope="module")
def models() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_llama(folder / "llama", rope_theta=50.0)
        tiny_qwen2(folder / "qwen2", heads=6, kv_heads=3, head_dim=14, rope_theta=1e6)
        file = tiny_gguf(folder / "gguf", quant="Q8_0", types=TYPES, hidden=256, inner=256, heads=8, kv_heads=2)
        for name, lineup in LINEUPS.items():
            if lineup.model == "gguf":
                (folder / f"{name}.gguf").symlink_to(file)
            else:
                (folder / name).symlink_to(folder / lineup.model)
        yield folder


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[Served]:
    engine = {"max_sequences": 4, "block_size": 8, "kv_blocks": BLOCKS, "chunk": 7, "threads": 1, "max_context": 128}
    config = {
        "preload": False,
        "engine": engine,
        "plugin": {"draft": {"ngram": {"min_n": 1}}},
        "models": {name: {"engine": v.engine, "plugins": v.plugins} for name, v in LINEUPS.items()}
        | {"misspelt": {"plugins": {"attention": "torhc"}}},
    }
    with serving(models / "paged", config) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(served: Served) -> Client:
    return served.client()


def wanted(models: Path, model: str) -> list[oracle.Wanted]:
    if model == "gguf":
        return oracle.of_gguf(models / "gguf" / "model.gguf", PROMPTS, NEW_TOKENS)
    return oracle.of_folder(models / model, PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("name", LINEUPS)
def test_a_lineup_answers_like_transformers(models: Path, served: Served, client: Client, name: str) -> None:
    lineup = LINEUPS[name]
    path = models / (f"{name}.gguf" if lineup.model == "gguf" else name)
    client.load(str(path))
    options: dict[str, Any] = {"model": name, "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    streams = [client.generate(prompt, stream=True, **options) for prompt in PROMPTS]
    answers = [stream.result() for stream in streams]
    for answer, want in zip(answers, wanted(models, lineup.model), strict=True):
        assert want.agrees(answer.ids, lineup.rounding), f"{name}, prompt of {len(want.prompt)}"
        assert (len(answer.ids), answer.finish) == (NEW_TOKENS, "length")

    status = ready(client, name)
    chosen = BASE | lineup.plugins
    chosen |= {"qwen2": {"architecture": "qwen2"}, "gguf": {"quantizer": "gguf"}}.get(lineup.model, {})
    assert status.plugins == chosen
    assert (status.exactness, status.exactness_by) == (lineup.exactness, lineup.by)
    listed = {(p.kind, p.name): p for p in client.plugins()}
    assert all(listed[kind, plugin].state == "chosen" for kind, plugin in chosen.items())
    assert all(p.why for p in listed.values() if p.state == "rejected")
    assert lineup.signs(client, status, answers)
    assert ("inferd.engine.rank" in served.children()) == (name == "layers")
    idle(client, name)

    assert client.unload(name) == "unloaded"
    assert model_of(client, name) is None
    eventually(lambda: served.children().keys() <= {"inferd.text"})


def test_a_misspelt_pin_is_refused_with_the_nearest_name(models: Path, client: Client) -> None:
    (models / "misspelt").symlink_to(models / "llama")
    with pytest.raises(PluginFailed, match="torch"):
        client.load(str(models / "misspelt"))
    assert the_model(client, "misspelt").state == "failed"
    assert client.unload("misspelt") == "unloaded"
