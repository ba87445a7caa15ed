"""Broken architectures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from inferd.plugin.contracts import ConfigView
from inferd.plugin.types import Accept, ModelSpec, ProbeContext, TensorRule, Verdict
from inferd_plugins.arch.llama import Llama


def _attention(spec: ModelSpec, **changes: Any) -> ModelSpec:
    layers = tuple(replace(layer, attention=replace(layer.attention, **changes)) for layer in spec.layers)
    return replace(spec, layers=layers)


class NoScale(Llama):
    """Leaves the scale at 0."""

    def spec(self, config: ConfigView) -> ModelSpec:
        return _attention(super().spec(config), scale=0.0)


class UnknownRope(Llama):
    """Names a rope that the spec does not have."""

    def spec(self, config: ConfigView) -> ModelSpec:
        return _attention(super().spec(config), rope="local")


class KvHeadsAreHeads(Llama):
    """Takes grouped-query models for multi-head ones."""

    def spec(self, config: ConfigView) -> ModelSpec:
        spec = super().spec(config)
        attention: Any = spec.layers[0].attention
        return _attention(spec, kv_heads=attention.heads)


class DefaultTheta(Llama):
    """Rotates by the default base, whatever the checkpoint says."""

    def spec(self, config: ConfigView) -> ModelSpec:
        spec = super().spec(config)
        return replace(spec, ropes={name: replace(rope, theta=1e4) for name, rope in spec.ropes.items()})


class ForgetsARule(Llama):
    """Has no rule for the last layer's down projection."""

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        last = f"layers.{spec.num_layers - 1}.mlp.down.weight"
        return [rule for rule in super().tensors(spec, source) if rule.target != last]


class UsesQueryHeads(Llama):
    """Un-permutes k with the number of query heads."""

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        attention: Any = spec.layers[0].attention
        return [
            rule._replace(unpermute_heads=attention.heads) if rule.unpermute_heads else rule
            for rule in super().tensors(spec, source)
        ]


class AlwaysTied(Llama):
    """Ignores an output matrix of its own."""

    def spec(self, config: ConfigView) -> ModelSpec:
        return replace(super().spec(config), tied_embeddings=True)


class RaisesKeyError(Llama):
    """Looks into the configuration without asking."""

    def spec(self, config: ConfigView) -> ModelSpec:
        if config.raw("num_hidden_layers", None) is None and config.source == "hf":
            raise KeyError("num_hidden_layers")
        return super().spec(config)


class GuessesLayers(Llama):
    """Takes one layer when the number is of no use."""

    def spec(self, config: ConfigView) -> ModelSpec:
        try:
            return super().spec(config)
        except ValueError as error:
            if "num_hidden_layers" not in str(error):
                raise
            return super().spec(_OneLayer(config))


class _OneLayer:
    def __init__(self, config: ConfigView) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def int(self, key: str, default: Any = ...) -> Any:
        return 1 if key == "num_hidden_layers" else self._config.int(key, default)


class TakesEveryModel(Llama):
    """Accepts checkpoints of any name."""

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        return Accept()


CAUGHT_BY = {
    NoScale: "finished_spec",
    UnknownRope: "finished_spec",
    KvHeadsAreHeads: "declared_numbers",
    DefaultTheta: "every_key_counts",
    ForgetsARule: "rule_for_every_parameter",
    UsesQueryHeads: "unpermuted_heads",
    AlwaysTied: "tied_embeddings",
    RaisesKeyError: "missing_keys",
    GuessesLayers: "wrong_values",
    TakesEveryModel: "probe_by_name",
}
