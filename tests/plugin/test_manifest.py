"""Parent and workers agree on plugins, or say where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from inferd.plugin.exactness import LEVELS, compose
from inferd.plugin.manifest import ManifestEntry, compare, manifest
from inferd.plugin.options import options_hash
from inferd.plugin.types import KINDS
from tests.plugin.fake import draft_module, install
from tests.plugin.test_resolver import choose


def test_a_manifest_describes_every_kind_and_survives_the_wire() -> None:
    entries = manifest(choose({"draft": "ngram"}))
    assert [e.kind for e in entries] == list(KINDS)
    assert all(e.version and e.distribution == "inferd" for e in entries)
    sent = msgspec.msgpack.encode(entries)
    assert msgspec.msgpack.decode(sent, type=tuple[ManifestEntry, ...]) == entries
    assert compare(entries, entries) == []


def test_another_choice_version_or_option_is_named(site: Path) -> None:
    here = manifest(choose({"draft": "ngram"}))
    assert compare(here, manifest(choose({"draft": "none"})))[0] == "draft: name expected 'ngram', found 'none'"
    other: Any = {"draft": {"ngram": {"max_n": 3}}}
    (line,) = compare(here, manifest(choose({"draft": "ngram"}, options=other)))
    assert line.startswith("draft: options_hash expected")
    install(site, "acme", {"acme": draft_module("acme")}, {"acme": "acme"}, version="1.0")
    acme = manifest(choose({"draft": "acme"}))
    newer = (*acme[:-1], msgspec.structs.replace(acme[-1], version="1.1"))
    assert compare(acme, newer) == ["draft: version expected '1.0', found '1.1'"]
    assert compare(here, here[:-1]) == ["draft: expected ngram, found no plugin"]


def test_options_hash_depends_on_values_only() -> None:
    class Options(msgspec.Struct):
        a: int = 1
        b: tuple[str, ...] = ()

    assert options_hash(Options()) == options_hash(Options(a=1, b=()))
    assert options_hash(Options()) != options_hash(Options(a=2))
    assert options_hash(None) != options_hash(Options())


def test_exactness_is_ordered_and_composes_to_the_weakest() -> None:
    assert LEVELS == ("bit", "token", "distribution", "approximate")
    assert compose([]) == ("bit", ())
    specs = [choice.spec for choice in choose({"attention": "torch"}).choices.values()]
    level, by = compose(specs)
    assert level == "token"
    assert "attention torch" in by
