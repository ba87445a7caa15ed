"""The kit has teeth: each broken plugin is rejected by the check that is about its fault."""

from __future__ import annotations

import pytest
import torch

from inferd.plugin.conformance import check, names
from inferd.plugin.contracts import Plugin
from inferd.plugin.types import KINDS, Kind
from tests.conformance.mutants import architecture, attention, describe, draft, kv, parallel, quantizer

torch.set_num_threads(1)

TABLES: dict[Kind, dict[type[Plugin], str]] = {
    "architecture": architecture.CAUGHT_BY,
    "parallel": parallel.CAUGHT_BY,
    "quantizer": quantizer.CAUGHT_BY,
    "kv": kv.CAUGHT_BY,
    "attention": attention.CAUGHT_BY,
    "draft": draft.CAUGHT_BY,
}
MUTANTS = [(kind, cls, caught_by) for kind, table in TABLES.items() for cls, caught_by in table.items()]


@pytest.mark.parametrize(("kind", "cls", "caught_by"), MUTANTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_mutant_is_rejected_by_name(kind: Kind, cls: type[Plugin], caught_by: str) -> None:
    # Architectures are looked for under their own name; ranks are too slow to run every check.
    spec = describe(cls, kind, "llama" if kind == "architecture" else "mutant")
    report = check(spec, only=(caught_by,) if kind == "parallel" else ())
    assert caught_by in report.failed, str(report)
    assert not report.ok


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_enough_mutants_of_every_kind(kind: Kind) -> None:
    assert len(TABLES[kind]) >= 5
    assert set(TABLES[kind].values()) <= set(names(kind))
