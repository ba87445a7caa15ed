"""Entry of the conformance kit: pick the checks of a plugin's kind and run them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from inferd.plugin.catalogue import api_problem
from inferd.plugin.conformance.report import (
    Check,
    NonconformanceError,
    Report,
    Subject,
    check_name,
    run_checks,
)
from inferd.plugin.options import parse_options
from inferd.plugin.target import load_target
from inferd.plugin.types import Accept, ProbeContext, Reject

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec
    from inferd.plugin.types import Kind


def check(
    spec: PluginSpec,
    *,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
    source: Literal["hf", "gguf"] = "hf",
    only: Collection[str] = (),
) -> Report:
    """Run the checks of the plugin's kind and report on each.

    `options` is the plugin's config table; `config` and `source` give an architecture a model
    configuration to read; `only` limits the run to checks of these names. Raises what importing the
    target raises, OptionsError for bad options, ValueError for an unknown check name.
    """
    table = dict(options or {})
    subject = Subject(
        spec=spec,
        cls=load_target(spec),
        options=parse_options(spec, table),
        device=device,
        config=config,
        source=source,
        table=table,
    )
    unknown = set(only) - set(names(spec.kind))
    if unknown:
        raise ValueError(f"no such check for kind {spec.kind}: {', '.join(sorted(unknown))}")
    checks = [c for c in _checks(spec.kind) if not only or check_name(c) in only]
    return run_checks(subject, checks)


def names(kind: Kind) -> list[str]:
    """Return the names of the checks of a kind, in the order they run."""
    return [check_name(c) for c in _checks(kind)]


def _checks(kind: Kind) -> list[Check]:
    module = import_module(f"inferd.plugin.conformance.{kind}")
    return [description, *module.CHECKS]


def description(subject: Subject) -> None:
    """The spec is for this api, and `probe` answers with Accept or Reject."""
    problem = api_problem(subject.spec.api)
    if problem:
        raise NonconformanceError(problem)
    context = ProbeContext(architecture_name="llama", device=subject.device, dtype="fp32", options=subject.table)
    verdict = subject.cls.probe(context)
    if not isinstance(verdict, Accept | Reject):
        raise NonconformanceError(f"probe returned {verdict!r}, not Accept or Reject")
    if isinstance(verdict, Reject) and not verdict.reasons:
        raise NonconformanceError("probe rejects without a reason")
