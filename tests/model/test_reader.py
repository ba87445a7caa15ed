"""Strict loading: what is missing, left over, misshapen or unread is an error that names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.load.errors import LoadError
from inferd.model.build import build_decoder, whole_model
from inferd.plugin.types import RankPlacement, TensorRule
from inferd_plugins.quant.none import NoQuantizer
from tests.model.harness import BACKENDS, Steps, assert_close, build, load
from tests.model.oracle import hf_logits
from tests.model.plain import MemoryCheckpoint, draw_weights, own_rules
from tests.model.specs import CONTEXT, TOKENS, spec
from tests.tiny import tiny_gguf, tiny_llama

torch.set_num_threads(1)
SPEC = spec()


def build_with(weights: dict[str, torch.Tensor], rules: list[TensorRule] | None = None, **options: Any) -> Any:
    checkpoint: Any = MemoryCheckpoint(weights)
    own = own_rules(SPEC) if rules is None else rules
    return build_decoder(
        SPEC, checkpoint, own, NoQuantizer(), device="cpu", dtype=torch.float32, context=CONTEXT, **options
    )


def test_every_missing_tensor_is_named() -> None:
    weights = draw_weights(SPEC)
    for name in weights:
        with pytest.raises(LoadError, match=f"memory: tensor {name} is missing"):
            build_with({k: v for k, v in weights.items() if k != name})


def test_left_over_tensors_are_named() -> None:
    extra = {f"extra.{i}": torch.zeros(1) for i in range(7)}
    with pytest.raises(LoadError, match=r"nothing reads tensor extra.0, .*extra.4 and 2 more"):
        build_with(draw_weights(SPEC) | extra)


def test_known_tensors_without_a_parameter_are_let_pass() -> None:
    rules = [*own_rules(SPEC), TensorRule("", "extra.inv_freq", optional=True)]
    build_with(draw_weights(SPEC) | {"extra.inv_freq": torch.zeros(3)}, rules)


def test_wrong_shapes_are_named_before_anything_is_read() -> None:
    weights = draw_weights(SPEC)
    weights["layers.1.attn.k.weight"] = torch.zeros(31, 32)
    with pytest.raises(LoadError, match=r"layers.1.attn.k.weight has shape \(31, 32\), expected \(32, 32\)"):
        build_with(weights, progress=lambda *_: pytest.fail("a tensor was read"))


def test_rules_must_cover_the_model_once() -> None:
    weights = draw_weights(SPEC)
    rules = own_rules(SPEC)
    with pytest.raises(LoadError, match=r"no tensor gives parameter norm\.weight"):
        build_with(weights, [r._replace(target="") if r.target == "norm.weight" else r for r in rules])
    with pytest.raises(LoadError, match=r"both give norm\.weight"):
        build_with(weights | {"twin": weights["norm.weight"]}, [*rules, TensorRule("norm.weight", "twin")])
    with pytest.raises(LoadError, match=r"the model has no parameter layers\.9\.bogus"):
        build_with(weights, [*rules, TensorRule("layers.9.bogus", "norm.weight")])


def test_unknown_types_are_refused_with_the_tensor() -> None:
    weights = draw_weights(SPEC)
    weights["norm.weight"] = weights["norm.weight"].to(torch.int8)
    checkpoint: Any = MemoryCheckpoint(weights)
    metas = checkpoint.tensors() | {"norm.weight": checkpoint.tensors()["norm.weight"]._replace(dtype="I8")}
    fake: Any = type("Fake", (), {"path": Path("m"), "nbytes": 0, "tensors": lambda _: metas, "read": weights.get})()
    with pytest.raises(LoadError, match=r"m: tensor norm.weight \(I8\)"):
        build_decoder(SPEC, fake, own_rules(SPEC), NoQuantizer(), device="cpu", dtype=torch.float32, context=CONTEXT)


def test_a_physical_output_matrix_counts_even_when_tied() -> None:
    tied = spec(tied_embeddings=True)
    weights = draw_weights(tied)
    own_head = torch.randn(60, 32, generator=torch.Generator().manual_seed(1))
    rules = [*own_rules(tied), TensorRule("lm_head.weight", "lm_head.weight", optional=True)]

    def logits(extra: dict[str, torch.Tensor]) -> torch.Tensor:
        checkpoint: Any = MemoryCheckpoint(weights | extra)
        decoder = build_decoder(
            tied, checkpoint, rules, NoQuantizer(), device="cpu", dtype=torch.float32, context=CONTEXT
        )
        return Steps(decoder, BACKENDS["torch"]()).run([("a", TOKENS)])[0]

    absent, same = logits({}), logits({"lm_head.weight": weights["embed.weight"]})
    assert torch.equal(absent, same)
    assert (logits({"lm_head.weight": own_head}) - absent).abs().max() > 0.1


def test_progress_reaches_all_bytes_in_order() -> None:
    seen: list[tuple[str, int, int]] = []
    weights = draw_weights(SPEC)
    build_with(weights, progress=lambda *step: seen.append(step))
    total = sum(t.nbytes for t in weights.values())
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("weights", total, total)


def test_weight_bytes_and_note(tmp_path: Path) -> None:
    decoder = build(SPEC, draw_weights(SPEC), CONTEXT)
    assert decoder.weight_bytes == sum(t.nbytes for t in draw_weights(SPEC).values())
    assert decoder.weights_note == ""
    note = load(tiny_gguf(tmp_path, quant="Q8_0")).weights_note
    assert "dequantised to float32" in note
    assert "i8_group" in note


def test_stages_add_up_to_the_whole_model(tmp_path: Path) -> None:
    """Each rank reads its own tensors only; hidden states handed on give the logits of one rank."""
    path = tiny_llama(tmp_path, layers=3, tied=True)
    first = load(path, placement=RankPlacement(0, "cpu", (0,), embeds=True, samples=False))
    last = load(path, placement=RankPlacement(1, "cpu", (1, 2), embeds=False, samples=True))
    assert (first.head, last.embed, len(first.blocks), len(last.blocks)) == (None, None, 1, 2)
    backend = BACKENDS["torch"]()
    front, back = Steps(first, backend), Steps(last, backend)
    hidden = front.hidden([("a", TOKENS)], None)
    logits = last.logits(back.hidden([("a", TOKENS)], hidden))
    assert_close(logits, hf_logits(path, TOKENS))


def test_slices_of_matrices_are_refused() -> None:
    placement = replace(whole_model(SPEC, "cpu"), shards=2)
    with pytest.raises(LoadError, match="tensor parallel"):
        build_with(draw_weights(SPEC), placement=placement)


def test_loaded_weights_do_not_keep_the_checkpoint_memory() -> None:
    weights = draw_weights(SPEC)
    decoder = build_with(weights)
    before = Steps(decoder, BACKENDS["torch"]()).run([("a", TOKENS)])[0]
    for tensor in weights.values():
        tensor.zero_()
    assert torch.equal(Steps(decoder, BACKENDS["torch"]()).run([("a", TOKENS)])[0], before)
