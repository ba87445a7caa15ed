"""The rows of `inferd plugins list`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

from inferd.plugin.listing import Listed, listing
from inferd.plugin.manager import PluginManager
from inferd_client.protocol import PluginInfo
from tests.plugin.fake import draft_module, install
from tests.plugin.test_resolver import attention_module, choose


def row(rows: list[Listed] | tuple[Listed, ...], name: str, kind: str) -> Listed:
    return next(r for r in rows if (r.name, r.kind) == (name, kind))


def test_without_a_model_plugins_are_available() -> None:
    rows = listing(PluginManager(["draft.ngram"]).load())
    assert row(rows, "torch", "attention").state == "available"
    disabled = row(rows, "ngram", "draft")
    assert (disabled.state, disabled.why) == ("disabled", "plugins.disable lists 'draft.ngram'")


def test_with_a_model_each_is_chosen_or_says_why_not(site: Path) -> None:
    bad = attention_module('name="bad", target="gone:Away", priority=99')
    modules = {"acme": draft_module("acme", spec="api=(9, 0)"), "bad": bad, "broken": "import nowhere_at_all"}
    install(site, "acme", modules, {"acme": "acme", "bad": "bad", "broken": "broken"}, version="4.2")
    rows = choose().listing
    assert row(rows, "cpu", "attention").state == "chosen"
    assert row(rows, "qwen2", "architecture") == row(rows, "qwen2", "architecture")._replace(
        state="rejected", why="reads qwen2, not llama"
    )
    newer = row(rows, "acme", "draft")
    assert (newer.state, newer.source, newer.version, newer.api) == ("rejected", "acme", "4.2", "9.0")
    assert "needs plugin api 9.0" in newer.why
    for failed in (row(rows, "bad", "attention"), row(rows, "broken", "?")):
        assert failed.state == "FAILED"
        assert failed.why.startswith("ModuleNotFoundError: No module named")
        assert "Traceback" in failed.why
    assert all(r.state == "chosen" or r.why for r in rows)


def test_a_disabled_distribution_is_listed(site: Path) -> None:
    install(site, "acme", {"acme": draft_module("acme")}, {"entry": "acme"})
    rows = listing(PluginManager(["acme"]).load())
    assert row(rows, "entry", "?").state == "disabled"


def test_rows_are_what_the_protocol_sends() -> None:
    assert Listed._fields == PluginInfo.__struct_fields__
    states = next(f.type for f in msgspec.structs.fields(PluginInfo) if f.name == "state")
    assert get_args(get_type_hints(Listed)["state"]) == get_args(states)
