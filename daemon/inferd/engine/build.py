"""Composition root of an engine worker: settings in, a running engine and its card out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inferd.devices import own_bytes
from inferd.engine.assembly import Assembly, Progress, assemble, build_runner, why_eager
from inferd.engine.builder import BatchBuilder
from inferd.engine.ceilings import measure
from inferd.engine.demand import demand_of
from inferd.engine.device import device_uuid
from inferd.engine.engine import Engine
from inferd.engine.grammars import Grammars
from inferd.engine.local import LocalExecutor
from inferd.engine.scheduler import Scheduler
from inferd.grammar.masks import MaskMaker
from inferd.link import ModelCard
from inferd.load.vocab import open_vocabulary
from inferd.plugin.manifest import manifest
from inferd.plugin.types import KVGroupSize, ModelSpec
from inferd.process import return_freed_memory
from inferd_client.protocol import PluginInfo
from inferd_kernels.linear import Rounding

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from inferd.engine.executor import Executor
    from inferd.engine.settings import WorkerSettings
    from inferd.engine.shape import EngineShape
    from inferd.load.vocab import TokenTable
    from inferd.plugin.resolution import Resolution

ROUNDED_TO: dict[Rounding, str] = {"int8": "integers", "fp8": "fp8", "bf16": "bf16"}
SIZES = (
    "max_context",
    "max_sequences",
    "token_budget",
    "chunk",
    "block_size",
    "num_blocks",
    "max_draft",
    "depth",
    "device_reserve",
    "threads",
)


@dataclass(frozen=True, slots=True)
class EngineDraftContext:
    """What a draft model is told of its target. Drafts that need a model of their own are not served yet."""

    spec: ModelSpec
    device: str

    def load(self, model: str) -> Any:
        raise ValueError(f"cannot load {model!r} as a draft: the engine runs one model a worker")

    def layers(self, count: int) -> Any:
        raise ValueError(f"cannot draft with the first {count} layers: the engine runs the whole model only")


def build_engine(settings: WorkerSettings, progress: Progress | None = None) -> tuple[Engine, ModelCard]:
    """Load a model and return its engine.

    Raises LoadError, PluginError or ValueError with one readable line when that cannot be done.
    """
    report = progress or (lambda phase, done, total: None)
    report("reading headers", 0, 0)
    assembly = assemble(settings)
    tokens = assembly.checkpoint.token_table()
    _check_tokens(tokens, assembly.spec)
    loaded = _executor(assembly, report)
    assembly = replace(assembly, shape=loaded.shape)
    card = _card(assembly, tokens, loaded)
    engine = _engine(assembly, loaded)
    return_freed_memory()
    return engine, card


class _Loaded(NamedTuple):
    executor: Executor
    shape: EngineShape
    weight_bytes: int
    weights_note: str
    rounds_activations: tuple[Rounding, ...]
    eager_because: str


def _executor(assembly: Assembly, report: Progress) -> _Loaded:
    if assembly.placement.world > 1:
        from inferd.engine.ranks import RankExecutor

        ranks = RankExecutor(assembly, report)
        because = "the model runs on several ranks"
        return _Loaded(ranks, assembly.shape, ranks.weight_bytes, ranks.weights_note, ranks.rounds_activations, because)
    runner = build_runner(assembly, 0, report)
    decoder = runner.decoder
    return _Loaded(
        LocalExecutor(runner, depth=assembly.shape.depth),
        runner.shape,
        decoder.weight_bytes,
        decoder.weights_note,
        decoder.rounds_activations,
        why_eager(assembly, decoder),
    )


def _engine(assembly: Assembly, loaded: _Loaded) -> Engine:
    config, shape, resolution = assembly.engine, assembly.shape, assembly.resolution
    resolution.kv.bind(
        [KVGroupSize(shape.num_blocks, layout.group.window) for layout in assembly.layouts],
        shape.block_size,
        prefix_cache=config.prefix_cache,
    )
    resolution.draft.bind(EngineDraftContext(assembly.spec, assembly.device))
    scheduler = Scheduler(
        shape,
        resolution.kv,
        batching=config.batching,
        skip_ahead=config.skip_ahead,
        ageing_s=config.ageing_s,
        step_s=config.step_ms / 1e3,
        most_steps=loaded.executor.most_steps,
        multi_step_s=config.multi_step_ms / 1e3,
        clock=time.monotonic,
        prefix_cache=config.prefix_cache,
    )
    path, vocab_size = Path(assembly.settings.path), assembly.spec.vocab_size
    builder = BatchBuilder(shape, len(assembly.layouts), MaskMaker(vocab_size, config.threads))
    return Engine(
        scheduler,
        loaded.executor,
        resolution.draft,
        builder,
        clock=time.monotonic,
        vocab_size=vocab_size,
        grammars=Grammars(lambda: _grammar_tokenizer(path, vocab_size)),
        demand=demand_of(assembly.spec, assembly.layouts, loaded.weight_bytes),
        background=chain(
            measure(assembly.device, config.threads, (_compute_format(assembly, loaded),), _cache(assembly)),
            loaded.executor.prepare(),  # a step that comes before captures what it needs itself
        ),
    )


def _compute_format(assembly: Assembly, loaded: _Loaded) -> str:
    """Return the number format of the matrix products: what rows are rounded to, integers first."""
    rounded = loaded.rounds_activations
    if "int8" in rounded or "fp8" in rounded:  # 8-bit units are as fast for either
        return "int8"
    return "bf16" if "bf16" in rounded else assembly.dtype


def _cache(assembly: Assembly) -> Path | None:
    return Path(assembly.settings.cache) if assembly.settings.cache else None


def _grammar_tokenizer(path: Path, vocab_size: int) -> LLTokenizer:
    """Read the vocabulary, at the first grammar: few workers need more of it than what ids stand for."""
    from inferd.grammar.tokenizer import make_tokenizer

    return make_tokenizer(open_vocabulary(path), vocab_size)


def _check_tokens(tokens: TokenTable, spec: ModelSpec) -> None:
    """A tokenizer with more ids than the model has rows would index past the embedding."""
    if len(tokens.pieces) > spec.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokens.pieces)} tokens, the model only {spec.vocab_size} rows")


def _card(assembly: Assembly, tokens: TokenTable, loaded: _Loaded) -> ModelCard:
    resolution, shape = assembly.resolution, assembly.shape
    rounding = _rounding(assembly, loaded)
    return ModelCard(
        architecture=assembly.checkpoint.architecture_name,
        dtype=assembly.dtype,
        device=assembly.device,
        vocab_size=assembly.spec.vocab_size,
        context=shape.max_context,
        eos_ids=tokens.eos_ids,
        pieces=tokens.pieces,
        special_ids=tokens.special_ids,
        plugins={str(kind): name for kind, name in resolution.names.items()},
        manifest=manifest(resolution),
        rejected=tuple((r.kind, r.name, r.why) for r in resolution.rejected),
        plugin_table=tuple(PluginInfo(**row._asdict()) for row in resolution.listing),
        exactness="approximate" if rounding else resolution.exactness.level,
        exactness_by=_lowered_by(resolution, rounding),
        eager_because=loaded.eager_because,
        shape={name: getattr(shape, name) for name in SIZES},
        shape_origin=dict(shape.origin),
        weight_bytes=loaded.weight_bytes,
        kv_bytes=assembly.kv_bytes,
        weights_note=loaded.weights_note,
        compute_format=_compute_format(assembly, loaded),
        process_bytes=max(0, (own_bytes() or 0) - loaded.weight_bytes),
        device_uuid=device_uuid(assembly.device),
    )


def _rounding(assembly: Assembly, loaded: _Loaded) -> list[str]:
    """Name the settings by which numbers are kept or multiplied with less precision than they are computed in."""
    to = " and ".join(to for rounding, to in ROUNDED_TO.items() if rounding in loaded.rounds_activations)
    found = [f"engine.linear (activations rounded to {to})"] if to else []
    kept = {layout.format for layout in assembly.layouts} - {"fp32", assembly.dtype}
    return found + [f"engine.kv_format (keys and values kept as {format})" for format in sorted(kept)]


def _lowered_by(resolution: Resolution, rounding: list[str]) -> str:
    """Name what keeps the output from being exact: plugins, or what rounds."""
    level, by = resolution.exactness
    if not rounding:
        return ", ".join(by)
    return ", ".join([*(by if level == "approximate" else ()), *rounding])
