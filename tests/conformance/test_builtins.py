"""Every plugin that ships with inferd passes the kit, and the kit's own reference plugins do."""

from __future__ import annotations

import pytest
import torch

from inferd.plugin.conformance import check, names
from inferd.plugin.contracts import Plugin, PluginSpec
from inferd.plugin.manager import PluginManager
from inferd.plugin.target import load_target
from inferd.plugin.types import KINDS, Kind, ProbeContext, Reject
from tests.conformance.mutants import describe
from tests.conformance.mutants.draft import RepeatsLast
from tests.conformance.mutants.kv import NaiveKV

torch.set_num_threads(1)

MANAGER = PluginManager().load()
BUILTINS = [e.spec for e in MANAGER.entries if e.source.builtin]


@pytest.mark.parametrize("spec", BUILTINS, ids=lambda s: f"{s.kind}-{s.name}")
def test_a_builtin_conforms(spec: PluginSpec) -> None:
    context = ProbeContext(architecture_name="llama", device="cpu", dtype="fp32")
    verdict = load_target(spec).probe(context)
    if isinstance(verdict, Reject):
        pytest.skip(f"does not run here: {verdict.reasons[0]}")
    report = check(spec)
    assert report.ok, str(report)
    assert any(r.outcome == "passed" for r in report.results)


def test_all_builtins_are_found() -> None:
    assert MANAGER.failures == []
    found = {kind: {s.name for s in BUILTINS if s.kind == kind} for kind in KINDS}
    assert found["architecture"] >= {"llama", "qwen2"}
    assert found["parallel"] >= {"single", "layers"}
    assert found["quantizer"] >= {"none", "gguf"}
    assert found["kv"] >= {"paged", "contiguous", "recompute"}
    assert found["attention"] >= {"torch", "reference"}
    assert found["draft"] >= {"none", "ngram"}


@pytest.mark.parametrize(("cls", "kind"), [(NaiveKV, "kv"), (RepeatsLast, "draft")])
def test_the_base_of_the_mutants_conforms(cls: type[Plugin], kind: Kind) -> None:
    report = check(describe(cls, kind))
    assert report.ok, str(report)


def test_what_the_builtins_leave_out_is_little() -> None:
    """A check that all built-ins skip would check nothing."""
    for kind in KINDS:
        reports = [check(spec) for spec in BUILTINS if spec.kind == kind and kind not in ("parallel", "attention")]
        for name in names(kind) if reports else []:
            outcomes = {r.outcome for report in reports for r in report.results if r.check == name}
            assert "passed" in outcomes, f"{kind}: {name}"
