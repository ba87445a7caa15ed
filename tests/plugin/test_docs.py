"""docs/PLUGINS.md leaves nothing out."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import msgspec
import pytest

from inferd.plugin import contracts, hookspecs
from inferd.plugin.conformance import names
from inferd.plugin.contracts import Capabilities, PluginSpec
from inferd.plugin.manager import PluginManager
from inferd.plugin.target import CONTRACTS
from inferd.plugin.types import KINDS, Kind, ProbeContext

PAGE = Path(__file__).parents[2] / "docs" / "PLUGINS.md"
SAID = set(re.findall(r"`([^`\n]+)`", PAGE.read_text()))
WORDS = {word for said in SAID for word in re.findall(r"[\w.]+", said)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_hook_is_documented_here_and_in_its_docstring(kind: Kind) -> None:
    hook = hookspecs.HOOKS[kind]
    assert hook in SAID
    assert kind in SAID
    said = inspect.getdoc(getattr(hookspecs, hook)) or ""
    assert "by the manager" in said, "by whom"
    assert "while plugins load" in said, "when"
    assert "all sources are joined" in said, "all results"


def test_there_is_a_hook_for_every_kind_and_no_other() -> None:
    assert list(hookspecs.HOOKS) == list(KINDS) == list(CONTRACTS)
    assert {n for n in vars(hookspecs) if n.startswith("inferd_")} == set(hookspecs.HOOKS.values())


@pytest.mark.parametrize("cls", [PluginSpec, Capabilities, ProbeContext])
def test_every_field_of_a_description_is_documented(cls: type) -> None:
    assert {f.name for f in dataclasses.fields(cls)} <= WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_of_a_contract_is_documented(kind: Kind) -> None:
    contract = CONTRACTS[kind]
    assert contract.__name__ in SAID
    methods = {n for n in vars(contract) if not n.startswith("_") and callable(getattr(contract, n))}
    assert methods <= WORDS
    assert all(inspect.getdoc(getattr(contract, name)) for name in methods)


def test_services_are_documented() -> None:
    assert {"Workspace", "DraftContext", "RankContext"} <= SAID & set(vars(contracts))


def test_every_option_of_every_builtin_is_documented() -> None:
    specs = [e.spec for e in PluginManager().load().entries if e.source.builtin and e.spec.options]
    assert len(specs) >= 2
    for spec in specs:
        assert spec.options is not None
        assert f"plugin.{spec.kind}.{spec.name}" in SAID
        assert {f.name for f in msgspec.structs.fields(spec.options)} <= SAID


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_is_documented(kind: Kind) -> None:
    assert set(names(kind)) <= SAID
