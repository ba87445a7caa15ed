"""The attention plugin on these kernels passes the conformance kit."""

from __future__ import annotations

import pytest

from inferd.plugin.conformance import check, names
from inferd.plugin.types import ProbeContext, Reject
from inferd_plugins.attention.specs import PLUGINS
from inferd_plugins.attention.triton import TritonAttention
from inferd_plugins.attention.triton_plan import Run, cut

SPEC = next(plugin for plugin in PLUGINS if plugin.name == "triton")
QUICK = {"description", "layout", "mixed_batch", "behind_window", "unowned_slots", "score_options", "formats"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in names("attention")]
)
def test_the_plugin_conforms(name: str) -> None:
    report = check(SPEC, only=(name,))
    assert report.ok, str(report)
    assert report.results[0].outcome == "passed"


def test_a_batch_is_cut_by_row_counts() -> None:
    runs = cut([1, 1, 3, 4, 2, 16, 17, 40, 1])
    assert runs == [
        Run(0, 2, 0, 2, 1),
        Run(2, 2, 2, 7, 4),
        Run(4, 1, 9, 2, 2),
        Run(5, 1, 11, 16, 16),
        Run(6, 2, 27, 57, 0),
        Run(8, 1, 84, 1, 1),
    ]


def test_probe_names_what_it_lacks() -> None:
    verdict = TritonAttention.probe(ProbeContext(architecture_name="x", device="cuda", dtype="bf16"))
    assert isinstance(verdict, Reject)
    assert "interpreter" in verdict.reasons[0]
    assert not isinstance(
        TritonAttention.probe(ProbeContext(architecture_name="x", device="cpu", dtype="fp32")), Reject
    )
