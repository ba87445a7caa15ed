"""Finding plugins: isolation, states, and where each comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferd.plugin.errors import UnknownPluginError
from inferd.plugin.manager import PluginManager
from tests.plugin.fake import HEAD, draft_module, install

NO_TORCH = """
import sys
from inferd.plugin.manager import PluginManager
manager = PluginManager().load()
assert not manager.failures, manager.failures
print(len(manager.entries), "torch" in sys.modules, "numpy" in sys.modules)
"""


def names(manager: PluginManager) -> set[str]:
    return {s.name for s in manager.specs("draft")}


def test_builtins_come_through_the_same_path_with_distribution_and_version() -> None:
    entry = PluginManager().load().find("attention", "reference")
    assert entry.source.builtin
    assert entry.source.distribution == "inferd"
    assert entry.source.version[0].isdigit()


def test_listing_plugins_imports_no_torch() -> None:
    run = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, check=True)
    count, torch, numpy = run.stdout.split()
    assert int(count) > 8
    assert (torch, numpy) == ("False", "False")


def test_an_entry_point_is_found_with_its_distribution(site: Path) -> None:
    install(site, "acme-drafts", {"acme": draft_module("acme")}, {"acme": "acme"}, version="2.5")
    entry = PluginManager().load().find("draft", "acme")
    assert entry.source.label == "acme-drafts 2.5"
    assert not entry.source.builtin


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("import no_such_module_anywhere\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("raise ImportError('needs a newer driver')\n", "needs a newer driver"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_one_broken_entry_point_of_three_leaves_the_others(site: Path, broken: str, said: str) -> None:
    modules = {"first": draft_module("first"), "middle": broken, "last": draft_module("last")}
    install(site, "trio", modules, {"a": "first", "b": "middle", "c": "last"})
    manager = PluginManager().load()
    assert names(manager) >= {"first", "last", "none", "ngram"}
    (failure,) = manager.failures
    assert failure.source.name == "b"
    assert failure.source.distribution == "trio"
    assert said in failure.reason
    assert "Traceback" in failure.traceback


HALF = {
    "the second hook raises": f"""{HEAD}
@hookimpl
def inferd_quantizers():
    return [PluginSpec(name="half", kind="quantizer", target="a:B")]

@hookimpl
def inferd_draft_models():
    raise RuntimeError("half way")
""",
    "a hook has an unknown argument": f"""{HEAD}
@hookimpl
def inferd_quantizers():
    return [PluginSpec(name="half", kind="quantizer", target="a:B")]

@hookimpl
def inferd_draft_models(surprise):
    return []
""",
    "a hook is misspelt": f"""{HEAD}
@hookimpl
def inferd_quantizers():
    return [PluginSpec(name="half", kind="quantizer", target="a:B")]

@hookimpl
def inferd_draft_model():
    return []
""",
}


@pytest.mark.parametrize("source", HALF.values(), ids=HALF)
def test_a_half_registered_plugin_is_rolled_back(site: Path, source: str) -> None:
    modules = {"half": source, "after": draft_module("after")}
    install(site, "halves", modules, {"half": "half", "zafter": "after"})
    manager = PluginManager().load()
    assert not [e for e in manager.entries if e.spec.name == "half"]
    assert [f.source.name for f in manager.failures] == ["half"]
    assert "after" in names(manager)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", ""),
        ("'draft'", "must return a list"),
        ("[1]", "not a PluginSpec"),
        ("[PluginSpec(name='x', kind='kv', target='a:B')]", "this hook is for 'draft'"),
        ("[PluginSpec(name='Bad Name', kind='draft', target='a:B')]", "lower-case"),
        ("[PluginSpec(name='x', kind='draft', target='a.b')]", "package.module:Class"),
        ("[PluginSpec(name='x', kind='draft', target='a:B', exactness='mostly')]", "exactness must be"),
        ("[PluginSpec(name='x', kind='draft', target='a:B', colour='red')]", "colour"),
    ],
)
def test_what_a_hook_returns_is_checked(site: Path, returned: str, said: str) -> None:
    source = f"{HEAD}\n@hookimpl\ndef inferd_draft_models():\n    return {returned}\n"
    install(site, "odd", {"odd": source}, {"odd": "odd"})
    failures = PluginManager().load().failures
    assert (len(failures) == 1 and said in failures[0].reason) if said else not failures


def test_a_newer_api_is_refused_with_the_version_it_needs(site: Path) -> None:
    modules = {"newer": draft_module("newer", spec="api=(1, 7)"), "next": draft_module("next", spec="api=(2, 0)")}
    install(site, "future", modules, {"newer": "newer", "next": "next"})
    manager = PluginManager().load()
    states = {e.spec.name: (e.state, e.why) for e in manager.entries}
    assert states["newer"][0] == states["next"][0] == "refused"
    assert "needs plugin api 1.7" in states["newer"][1]
    assert "this inferd offers 1.0" in states["newer"][1]
    with pytest.raises(UnknownPluginError, match=r"needs plugin api 2\.0"):
        manager.find("draft", "next")


def test_an_older_major_api_is_refused(site: Path) -> None:
    install(site, "past", {"old": draft_module("old", spec="api=(0, 9)")}, {"old": "old"})
    with pytest.raises(UnknownPluginError, match="no longer offered"):
        PluginManager().load().find("draft", "old")


def test_a_duplicate_of_a_builtin_is_refused_and_naming_it_is_an_error(site: Path) -> None:
    install(site, "copycat", {"copy_": draft_module("ngram")}, {"copy": "copy_"})
    manager = PluginManager().load()
    (entry,) = [e for e in manager.available("draft") if e.spec.name == "ngram"]
    assert entry.source.builtin
    with pytest.raises(UnknownPluginError, match=r"duplicate name 'ngram'.*copycat 1\.0.*inferd"):
        manager.find("draft", "ngram")


def test_two_packages_that_claim_one_name_both_lose(site: Path) -> None:
    install(site, "one", {"one": draft_module("same")}, {"one": "one"})
    install(site, "two", {"two": draft_module("same")}, {"two": "two"})
    manager = PluginManager().load()
    assert "same" not in names(manager)
    with pytest.raises(UnknownPluginError, match=r"one 1\.0.*two 1\.0.*overrides="):
        manager.find("draft", "same")


def test_overrides_replaces_a_plugin_under_its_name(site: Path) -> None:
    install(site, "better", {"better": draft_module("ngram", spec="overrides='ngram'")}, {"better": "better"})
    manager = PluginManager().load()
    assert manager.find("draft", "ngram").source.distribution == "better"
    (old,) = [e for e in manager.entries if e.state == "overridden"]
    assert old.source.builtin
    assert "better 1.0" in old.why


def test_overrides_under_another_name_answers_to_both(site: Path) -> None:
    install(site, "better", {"better": draft_module("suffix", spec="overrides='ngram'")}, {"better": "better"})
    manager = PluginManager().load()
    assert manager.find("draft", "ngram").spec.name == manager.find("draft", "suffix").spec.name == "suffix"


def test_two_that_override_the_same_are_refused(site: Path) -> None:
    install(site, "one", {"one": draft_module("x", spec="overrides='ngram'")}, {"one": "one"})
    install(site, "two", {"two": draft_module("y", spec="overrides='ngram'")}, {"two": "two"})
    manager = PluginManager().load()
    assert names(manager) >= {"ngram", "none"}
    assert not names(manager) & {"x", "y"}
    with pytest.raises(UnknownPluginError, match="several plugins override 'ngram'"):
        manager.find("draft", "x")


def test_a_disabled_plugin_is_kept_out_and_says_so() -> None:
    manager = PluginManager(["draft.ngram", "draft.typo"]).load()
    assert "ngram" not in names(manager)
    with pytest.raises(UnknownPluginError, match="disabled"):
        manager.find("draft", "ngram")
    assert manager.unmatched_disables() == ["draft.typo"]


@pytest.mark.parametrize("disable", ["acme-drafts", "entry"])
def test_a_disabled_distribution_or_entry_point_is_not_imported(site: Path, disable: str) -> None:
    install(site, "acme-drafts", {"acme": "raise SystemExit"}, {"entry": "acme"})
    manager = PluginManager([disable]).load()
    assert manager.failures == []
    assert [s.name for s in manager.blocked] == ["entry"]
    assert manager.unmatched_disables() == []


def test_a_missing_name_gets_nearest_names_and_the_failures(site: Path) -> None:
    install(site, "broken", {"broken": "import nowhere_at_all"}, {"ngrams": "broken"})
    manager = PluginManager().load()
    with pytest.raises(UnknownPluginError) as caught:
        manager.find("draft", "ngrm")
    assert "did you mean 'ngram'?" in str(caught.value)
    assert "ngrams of broken 1.0" in str(caught.value)
    assert "nowhere_at_all" in str(caught.value)


def test_the_order_of_entry_points_does_not_matter(site: Path) -> None:
    install(site, "zz", {"zz": draft_module("zz", spec="priority=300")}, {"zz": "zz"})
    install(site, "aa", {"aa": draft_module("aa", spec="priority=300")}, {"aa": "aa"})
    assert [s.name for s in PluginManager().load().specs("draft")][:2] == ["aa", "zz"]


def test_loading_again_starts_afresh(site: Path) -> None:
    manager = PluginManager().load()
    before = len(manager.entries)
    install(site, "late", {"late": draft_module("late")}, {"late": "late"})
    assert len(manager.load().entries) == before + 1
