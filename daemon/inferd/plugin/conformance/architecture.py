"""Checks of architectures: a complete spec, a rule for every parameter, and strict reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from inferd.plugin.conformance.decoder_parameters import parameters
from inferd.plugin.conformance.report import Check, NonconformanceError, SkipCheckError, Subject, require
from inferd.plugin.conformance.sample_config import HF, SampleConfig, Source, hf_key, sample, tensors
from inferd.plugin.contracts import Architecture
from inferd.plugin.types import Gqa, ModelSpec, ProbeContext, Reject

CORE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
"""Keys that no model can do without."""


def _configs(subject: Subject) -> list[tuple[Source, dict[str, Any]]]:
    """Return the configuration handed in, or those of the kit's own that the plugin can read."""
    if subject.config is not None:
        return [(subject.source, dict(subject.config))]
    sources: tuple[Source, ...] = ("hf", "gguf")
    found, refusals = [], []
    for source in sources:
        values = sample(subject.spec.name, source)
        try:
            _read(subject, source, values)
            found.append((source, values))
        except ValueError as error:
            refusals.append(f"{source}: {error}")
    require(found, f"reads none of the kit's configurations ({'; '.join(refusals)}); hand one in with config=")
    return found


def _read(subject: Subject, source: Source, values: Mapping[str, Any], *, tied: bool = False) -> ModelSpec:
    architecture: Architecture = subject.make()
    return architecture.spec(SampleConfig(values, source, tensors(values, subject.spec.name, source, tied=tied)))


def _changed(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    return {**values, key: value}


def probe_by_name(subject: Subject) -> None:
    """Accepts checkpoints of its own name and rejects others."""
    for name, wanted in ((subject.spec.name, True), ("no-such-architecture", False)):
        context = ProbeContext(architecture_name=name, device="cpu", dtype="fp32", options=subject.table)
        accepted = not isinstance(subject.cls.probe(context), Reject)
        require(accepted == wanted, f"probe {'accepts' if accepted else 'rejects'} architecture {name!r}")


def finished_spec(subject: Subject) -> None:
    """Every field is filled in: no scale of 0, rope keys that exist, sizes that fit each other."""
    for source, values in _configs(subject):
        _check_spec(_read(subject, source, values), source)


def _check_spec(spec: ModelSpec, source: Source) -> None:
    require(isinstance(spec, ModelSpec), f"{source}: not a ModelSpec but {type(spec).__name__}")
    for name in ("vocab_size", "hidden_size", "num_layers", "trained_context", "norm_eps"):
        require(getattr(spec, name) > 0, f"{source}: {name} is {getattr(spec, name)}")
    for i, layer in enumerate(spec.layers):
        attention, where = layer.attention, f"{source}: layer {i}"
        require(attention.scale != 0, f"{where}: scale is 0")
        require(attention.rope is None or attention.rope in spec.ropes, f"{where}: no rope {attention.rope!r}")
        require(layer.mlp.inner > 0, f"{where}: inner size is {layer.mlp.inner}")
        if isinstance(attention, Gqa):
            require(
                attention.heads % attention.kv_heads == 0, f"{where}: {attention.heads} heads, {attention.kv_heads} KV"
            )
            require(attention.window is None or attention.window > 0, f"{where}: window {attention.window}")
            dim = spec.ropes[attention.rope].dim if attention.rope else 2
            require(0 < dim <= attention.head_dim and dim % 2 == 0, f"{where}: {dim} of {attention.head_dim} rotated")


def declared_numbers(subject: Subject) -> None:
    """Each number of the configuration arrives in the spec, and not a default or another one."""
    for source, values in _configs(subject):
        spec = _read(subject, source, values)
        named = {hf_key(subject.spec.name, k): v for k, v in values.items()}
        for key, got in _numbers(spec).items():
            if key in named and named[key] is not None:
                require(got == {named[key]}, f"{source}: {key} is {named[key]}, the spec says {sorted(got)}")


def _numbers(spec: ModelSpec) -> dict[str, set[Any]]:
    layers = [layer.attention for layer in spec.layers if isinstance(layer.attention, Gqa)]
    found: dict[str, set[Any]] = {
        "hidden_size": {spec.hidden_size},
        "intermediate_size": {layer.mlp.inner for layer in spec.layers},
        "num_hidden_layers": {spec.num_layers},
        "vocab_size": {spec.vocab_size},
        "rms_norm_eps": {spec.norm_eps},
        "num_attention_heads": {a.heads for a in layers},
        "num_key_value_heads": {a.kv_heads for a in layers},
        "head_dim": {a.head_dim for a in layers},
        "rope_theta": {rope.theta for rope in spec.ropes.values()},
        "max_position_embeddings": {spec.trained_context},
    }
    return {key: values for key, values in found.items() if values}


def every_key_counts(subject: Subject) -> None:
    """A changed value changes the spec or is refused; it is never ignored."""
    for source, values in _configs(subject):
        before = _read(subject, source, values)
        for key, value in _alternatives(subject, values):
            try:
                after = _read(subject, source, _changed(values, key, value))
            except ValueError:
                continue
            require(after != before, f"{source}: {key} = {value!r} gives the spec of {key} = {values[key]!r}")


def _alternatives(subject: Subject, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give another sound value for each number that a spec must reflect."""
    for key, value in values.items():
        known = hf_key(subject.spec.name, key) in HF
        if known and isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value * 2


def rule_for_every_parameter(subject: Subject) -> None:
    """Exactly the parameters of the model have a rule, one each, from tensors of different names."""
    for source, values in _configs(subject):
        for tied in (False, True):
            spec = _read(subject, source, _tied(values, source, tied), tied=tied)
            _check_rules(subject, spec, source)


def _tied(values: dict[str, Any], source: Source, tied: bool) -> dict[str, Any]:
    return _changed(values, "tie_word_embeddings", tied) if source == "hf" else values


def _check_rules(subject: Subject, spec: ModelSpec, source: Source) -> None:
    architecture: Architecture = subject.make()
    rules = architecture.tensors(spec, source)
    targets = [rule.target for rule in rules if rule.target]
    doubles = sorted(name for name, n in Counter(targets).items() if n > 1)
    require(not doubles, f"{source}: several rules for {', '.join(doubles)}")
    wanted = parameters(spec)
    require(not wanted - set(targets), f"{source}: no rule for {', '.join(sorted(wanted - set(targets)))}")
    require(not set(targets) - wanted, f"{source}: no parameter {', '.join(sorted(set(targets) - wanted))}")
    sources = [name for name, n in Counter(rule.source for rule in rules).items() if n > 1]
    require(not sources, f"{source}: tensors read twice: {', '.join(sorted(sources))}")


def unpermuted_heads(subject: Subject) -> None:
    """Where a converter interleaved rows, q is restored with its heads, k with the KV heads, nothing else."""
    for source, values in _configs(subject):
        architecture: Architecture = subject.make()
        spec = _read(subject, source, values)
        for rule in architecture.tensors(spec, source):
            _check_heads(spec, rule.target, rule.unpermute_heads)


def _check_heads(spec: ModelSpec, target: str, heads: int) -> None:
    if not heads:
        return
    _, index, *part = target.split(".")
    attention = spec.layers[int(index)].attention if part[:1] == ["attn"] else None
    allowed = {"q": attention.heads, "k": attention.kv_heads} if isinstance(attention, Gqa) else {}
    require(allowed.get(part[1] if len(part) > 1 else "") == heads, f"{target}: rows un-permuted over {heads} heads")


def tied_embeddings(subject: Subject) -> None:
    """A tied model without an output matrix says so; one with a matrix of its own uses it."""
    for source, values in _configs(subject):
        tied = _read(subject, source, _tied(values, source, True), tied=True)
        require(tied.tied_embeddings, f"{source}: tied in the checkpoint, not in the spec")
        apart = _read(subject, source, _tied(values, source, False))
        require(not apart.tied_embeddings, f"{source}: an output matrix of its own is ignored")


def missing_keys(subject: Subject) -> None:
    """A key that is missing has a documented default, or raises ValueError that names it."""
    for source, values in _configs(subject):
        for key in values:
            rest = {k: v for k, v in values.items() if k != key}
            core = hf_key(subject.spec.name, key) in CORE
            spec = _attempt(subject, source, rest, key, "missing", must_name=core)
            require(spec is None or not core, f"{source}: {key} is missing, and a spec came out")
            if spec is not None:
                _check_spec(spec, source)


def wrong_values(subject: Subject) -> None:
    """Values of a wrong type, 0 and negative sizes raise ValueError, whatever the key."""
    for source, values in _configs(subject):
        for key, value in values.items():
            bad: tuple[Any, ...] = ("junk", [1], {"a": 1})
            if isinstance(value, int) and not isinstance(value, bool):
                bad = (*bad, 0, -value)
            for wrong in bad:
                spec = _attempt(subject, source, _changed(values, key, wrong), key, repr(wrong))
                core = hf_key(subject.spec.name, key) in CORE
                require(spec is None or not core, f"{source}: {key} = {wrong!r} was accepted")


def _attempt(
    subject: Subject, source: Source, values: Mapping[str, Any], key: str, what: str, *, must_name: bool = True
) -> ModelSpec | None:
    """Read; None when refused. Raises NonconformanceError for an error that does not name the key."""
    try:
        return _read(subject, source, values)
    except ValueError as error:
        short = key.rpartition(".")[2]
        require(not must_name or short in str(error), f"{source}: {key} is {what}, the error does not name it: {error}")
        return None
    except Exception as error:
        raise NonconformanceError(f"{source}: {key} is {what}: {type(error).__name__}: {error}") from error


def repeatable(subject: Subject) -> None:
    """Reading twice gives equal specs and rules."""
    for source, values in _configs(subject):
        first, second = (_read(subject, source, values) for _ in range(2))
        require(first == second, f"{source}: two readings differ")
        rules = [subject.make().tensors(first, source) for _ in range(2)]
        require(rules[0] == rules[1], f"{source}: two lists of rules differ")


def layers_alike(subject: Subject) -> None:
    """A deeper model of the same configuration has the same first layers."""
    for source, values in _configs(subject):
        keys = [k for k in values if hf_key(subject.spec.name, k) == "num_hidden_layers"]
        if not keys:
            raise SkipCheckError("the configuration names no number of layers")
        few = _read(subject, source, values)
        many = _read(subject, source, _changed(values, keys[0], 2 * few.num_layers))
        require(many.num_layers == 2 * few.num_layers, f"{source}: {many.num_layers} layers of {2 * few.num_layers}")
        same = all(type(a) is type(b) for a, b in zip(few.layers, many.layers, strict=False))
        require(same and many.ropes == few.ropes, f"{source}: depth changes the layers")


CHECKS: tuple[Check, ...] = (
    probe_by_name,
    finished_spec,
    declared_numbers,
    every_key_counts,
    rule_for_every_parameter,
    unpermuted_heads,
    tied_embeddings,
    missing_keys,
    wrong_values,
    repeatable,
    layers_alike,
)
