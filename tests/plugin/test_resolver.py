"""Choosing plugins: order, pins, priorities, conflicts, options, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from inferd.plugin.contracts import Architecture, Capabilities, PluginSpec
from inferd.plugin.errors import ConflictError, OptionsError, UnknownPluginError
from inferd.plugin.manager import PluginManager
from inferd.plugin.resolution import Resolution
from inferd.plugin.resolver import resolve
from inferd.plugin.types import KINDS, DenseMlp, Gqa, Kind, LayerSpec, Mla, ModelSpec, ProbeContext, RopeSpec
from tests.plugin.fake import HEAD, draft_module, install

CONTEXT = ProbeContext(
    architecture_name="llama",
    device="cpu",
    dtype="fp32",
    source="hf",
    weight_types=frozenset({"F32"}),
    kv_format="fp32",
    max_draft=4,
)


def model(attention: Gqa | Mla = Gqa(heads=4, kv_heads=2, head_dim=8, scale=0.35)) -> ModelSpec:
    return ModelSpec(
        architecture="llama",
        vocab_size=64,
        hidden_size=32,
        layers=(LayerSpec(attention, DenseMlp(inner=64)),) * 4,
        ropes={"main": RopeSpec(theta=1e4, dim=8)},
        norm_eps=1e-6,
        trained_context=64,
        tied_embeddings=False,
    )


def choose(
    pins: Mapping[Kind, str] | None = None,
    *,
    context: ProbeContext = CONTEXT,
    spec: ModelSpec | None = None,
    options: Any = None,
    disable: tuple[str, ...] = (),
) -> Resolution:
    manager = PluginManager(disable).load()
    return resolve(manager, context, pins or {}, lambda _: spec or model(), options=options)


def why(resolution: Resolution, kind: Kind, name: str) -> str:
    return next(r.why for r in resolution.rejected if (r.kind, r.name) == (kind, name))


def attention_module(*plugins: str, code: str = "") -> str:
    """A module of attention plugins that can be built but never run; `plugins` are spec arguments."""
    specs = ", ".join(f'PluginSpec(kind="attention", {p})' for p in plugins)
    return f"""{HEAD}
from inferd.plugin.contracts import AttentionBackend, Capabilities
from inferd.plugin.types import Accept, Reject

class Backend(AttentionBackend):
    def kv_layout(self, group, format, block_size): raise NotImplementedError
    def plan(self, inputs, workspace): raise NotImplementedError
    def attend(self, layer, q, kv, plan): raise NotImplementedError

class NeedsContiguous(Backend):
    @classmethod
    def probe(cls, context):
        return Accept() if context.chosen["kv"] == "contiguous" else Reject(("needs kv = contiguous",))

class SeesChoices(Backend):
    seen = []
    @classmethod
    def probe(cls, context):
        cls.seen.append((dict(context.chosen), context.spec is not None, dict(context.options)))
        return Accept("looked")

class Raises(Backend):
    @classmethod
    def probe(cls, context):
        raise ZeroDivisionError("probe went wrong")
{code}

@hookimpl
def inferd_attention_backends():
    return [{specs}]
"""


def test_the_defaults_serve_a_plain_model_and_every_loser_has_a_reason() -> None:
    resolution = choose()
    assert list(resolution.choices) == list(KINDS)
    assert resolution.names == {
        "architecture": "llama",
        "parallel": "single",
        "quantizer": "none",
        "kv": "paged",
        "attention": "cpu",
        "draft": "none",
    }
    manager = PluginManager().load()
    assert len(resolution.rejected) == len(manager.entries) - len(KINDS)
    assert all(r.reasons for r in resolution.rejected)
    assert why(resolution, "architecture", "qwen2") == "reads qwen2, not llama"
    assert why(resolution, "attention", "reference") == "priority 0, 'cpu' has 20"
    assert "GGUF" in why(resolution, "quantizer", "gguf")


def test_objects_are_built_once_and_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    resolution = choose()
    cls = resolution.choices["kv"].cls
    built: list[Any] = []
    real = cls.__init__
    monkeypatch.setattr(cls, "__init__", lambda self, options=None: (built.append(1), real(self, options))[1])
    assert built == []
    assert resolution.kv is resolution.kv
    assert built == [1]


def test_a_pin_wins_over_priority() -> None:
    resolution = choose({"attention": "reference", "kv": "contiguous"})
    assert resolution.names["attention"] == "reference"
    assert resolution.choices["attention"].pinned
    assert why(resolution, "attention", "torch") == "you named 'reference'"


def test_an_empty_pin_is_none() -> None:
    assert choose({"attention": ""}).names["attention"] == "cpu"


def test_priority_then_name(site: Path) -> None:
    specs = [f'name="{name}", target="many:Backend", priority=50' for name in ("zz", "bb", "aa")]
    install(site, "many", {"many": attention_module(*specs)}, {"many": "many"})
    resolution = choose()
    assert resolution.names["attention"] == "aa"
    assert why(resolution, "attention", "bb") == "same priority as 'aa', which comes first by name"


def test_each_probe_sees_the_earlier_choices_and_its_own_options(site: Path) -> None:
    import msgspec  # noqa: F401 - the fake module needs it installed

    code = "import msgspec\nclass Options(msgspec.Struct):\n    depth: int = 1\n"
    source = attention_module('name="sees", target="sees:SeesChoices", priority=99, options=Options', code=code)
    install(site, "sees", {"sees": source}, {"sees": "sees"})
    resolution = choose(options={"attention": {"sees": {"depth": 3}}})
    cls: Any = resolution.choices["attention"].cls
    ((chosen, has_spec, options),) = cls.seen
    assert list(chosen) == ["architecture", "parallel", "quantizer", "kv"]
    assert has_spec
    assert options == {"depth": 3}
    assert resolution.choices["attention"].note == "looked"
    assert resolution.attention.options.depth == 3


def test_an_earlier_choice_is_taken_back_when_it_leaves_a_later_kind_without_plugin(site: Path) -> None:
    source = attention_module('name="picky", target="picky:NeedsContiguous"')
    install(site, "picky", {"picky": source}, {"picky": "picky"})
    resolution = choose({"attention": "picky"})
    assert resolution.names["kv"] == "contiguous"
    assert why(resolution, "kv", "paged") == "leaves no attention plugin that can serve"


def test_the_least_set_of_conflicting_pins_is_named(site: Path) -> None:
    source = attention_module('name="picky", target="picky:NeedsContiguous"')
    install(site, "picky", {"picky": source}, {"picky": "picky"})
    pins: dict[Kind, str] = {"parallel": "single", "kv": "paged", "attention": "picky", "draft": "none"}
    with pytest.raises(ConflictError) as caught:
        choose(pins)
    assert caught.value.pins == ("kv=paged", "attention=picky")
    assert "plugins.kv = 'paged' and plugins.attention = 'picky' cannot be used together" in str(caught.value)
    assert "needs kv = contiguous" in str(caught.value)


def test_one_pin_that_can_never_serve_is_named_alone() -> None:
    with pytest.raises(ConflictError) as caught:
        choose({"architecture": "qwen2", "kv": "paged", "draft": "none"})
    assert caught.value.pins == ("architecture=qwen2",)
    assert "reads qwen2, not llama" in str(caught.value)


def test_no_plugin_at_all_names_no_pin() -> None:
    with pytest.raises(ConflictError) as caught:
        choose({"draft": "none"}, context=ProbeContext(architecture_name="gpt5", device="cpu", dtype="fp32"))
    assert caught.value.pins == ()
    assert "no architecture plugin can serve" in str(caught.value)
    assert "reads llama, not gpt5" in str(caught.value)


def test_a_pin_that_is_missing_is_fatal_with_nearest_names() -> None:
    with pytest.raises(UnknownPluginError, match=r"no attention plugin 'tourch'; did you mean 'torch'\?"):
        choose({"attention": "tourch"})


def test_a_pin_on_a_disabled_plugin_is_fatal() -> None:
    with pytest.raises(UnknownPluginError, match="'contiguous' is disabled"):
        choose({"kv": "contiguous"}, disable=("kv.contiguous",))


BROKEN = [
    ("gone_module:Backend", "ModuleNotFoundError"),
    ("bad:Missing", "is no AttentionBackend class"),
    ("bad:Raises", "probe went wrong"),
    ("inferd_plugins.draft.none:NoDraft", "is no AttentionBackend class"),
    ("bad:Half", "does not implement attend"),
    ("exits:Backend", "SystemExit"),
]
HALF = "class Half(AttentionBackend):\n    def kv_layout(self, *a): ...\n    def plan(self, *a): ...\n"


@pytest.mark.parametrize(("target", "said"), BROKEN)
def test_a_target_that_fails_is_passed_over_unless_it_was_named(site: Path, target: str, said: str) -> None:
    source = attention_module(f'name="bad", target="{target}", priority=99', code=HALF)
    install(site, "bad", {"bad": source, "exits": "raise SystemExit(1)"}, {"bad": "bad"})
    resolution = choose()
    assert resolution.names["attention"] == "cpu"
    assert said in why(resolution, "attention", "bad")
    failure = resolution.failures["attention.bad"]
    assert "Traceback" in failure.traceback
    with pytest.raises(UnknownPluginError, match=r"plugin 'bad' of bad 1\.0 failed") as caught:
        choose({"attention": "bad"})
    assert said in str(caught.value)


CANNOT = [
    ("devices=frozenset({'cuda'})", "device cpu not among cuda"),
    ("dtypes=frozenset({'bf16'})", "dtype fp32 not among bf16"),
    ("head_dims=frozenset({64, 128})", "head_dim 8 not among 64, 128"),
    ("kv_formats=frozenset({'fp8', 'int8'})", "KV format fp32 not among fp8, int8"),
]


@pytest.mark.parametrize(("capability", "said"), CANNOT)
def test_declared_capabilities_decide_before_anything_is_imported(site: Path, capability: str, said: str) -> None:
    spec = f'name="able", target="not_there:At", priority=99, capabilities=Capabilities({capability})'
    install(site, "able", {"able": attention_module(spec)}, {"able": "able"})
    resolution = choose()
    assert why(resolution, "attention", "able") == said
    assert resolution.failures == {}


def test_windows_and_latent_attention_need_to_be_declared(site: Path) -> None:
    spec = 'name="plain", target="plain:Backend", priority=99, capabilities=Capabilities(sliding_window=False)'
    install(site, "plain", {"plain": attention_module(spec)}, {"plain": "plain"})
    windowed = model(Gqa(heads=4, kv_heads=2, head_dim=8, scale=0.35, window=4))
    assert choose().names["attention"] == "plain"
    assert why(choose(spec=windowed), "attention", "plain") == "no sliding window"
    with pytest.raises(ConflictError, match="no multi-head latent attention"):
        choose(spec=model(Mla(4, None, 16, 8, 8, 8, scale=0.3)))


def test_errors_of_the_spec_reader_are_passed_on() -> None:
    def read(architecture: Architecture) -> ModelSpec:
        raise ValueError("config.json: rope_type is strange")

    with pytest.raises(ValueError, match="rope_type is strange"):
        resolve(PluginManager().load(), CONTEXT, {}, read)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft": {"ngram": {"max_m": 3}}}, r"\[plugin.draft.ngram\] max_m: unknown option; did you mean 'max_n'"),
        ({"draft": {"ngram": {"max_n": "3"}}}, r"\[plugin.draft.ngram\] max_n: Expected `int`, got `str`"),
        ({"draft": {"ngram": {"min_n": 9}}}, r"\[plugin.draft.ngram\].*min_n 9"),
        ({"draft": {"none": {"k": 1}}}, r"\[plugin.draft.none\] k: this plugin takes no options"),
        ({"drafts": {}}, r"\[plugin.drafts\]: no such kind of plugin; did you mean 'draft'"),
        ({"draft": {"ngrm": {}}}, r"\[plugin.draft.ngrm\]: no draft plugin 'ngrm'; did you mean 'ngram'"),
    ],
)
def test_options_are_checked_even_of_plugins_that_are_not_chosen(options: Any, said: str) -> None:
    with pytest.raises((OptionsError, UnknownPluginError), match=said):
        choose({"draft": "none"}, options=options)


def test_options_reach_the_plugin() -> None:
    resolution = choose({"draft": "ngram"}, options={"draft": {"ngram": {"max_n": 3}}})
    assert resolution.draft.options.max_n == 3
    assert resolution.draft.options.min_n == 2


def test_options_of_a_disabled_plugin_are_no_error() -> None:
    resolution = choose({"draft": "none"}, options={"draft": {"ngram": {"max_n": 3}}}, disable=("draft.ngram",))
    assert resolution.names["draft"] == "none"


def test_resolving_twice_gives_the_same(site: Path) -> None:
    install(site, "more", {"more": draft_module("more", spec="priority=5")}, {"more": "more"})
    first, second = choose(), choose()
    assert first.names == second.names
    assert first.rejected == second.rejected
    assert choose(first.names).names == first.names


def test_the_weakest_plugin_decides_exactness_and_is_named(site: Path) -> None:
    resolution = choose({"attention": "torch", "kv": "contiguous", "draft": "none"})
    assert resolution.exactness == ("token", ("attention torch",))
    assert choose({"attention": "reference", "kv": "contiguous", "draft": "none"}).exactness == ("bit", ())
    loose = draft_module("loose", spec="exactness='approximate'")
    install(site, "loose", {"loose": loose}, {"loose": "loose"})
    assert choose({"draft": "loose"}).exactness == ("approximate", ("draft loose",))


def test_plugins_that_force_eager_steps_are_named() -> None:
    assert choose({"attention": "reference"}).not_capture_safe("cpu") == ("attention reference",)
    assert choose({"attention": "cpu"}).not_capture_safe("cuda:1") == ()


def test_a_capability_of_another_kind_is_not_asked_of_a_draft() -> None:
    spec = PluginSpec(name="d", kind="draft", target="a:B", capabilities=Capabilities(head_dims=frozenset({64})))
    from inferd.plugin.capabilities import lacks

    assert lacks(spec, ProbeContext("llama", "cpu", "fp32", spec=model())) == []
