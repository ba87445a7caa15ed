"""Whether the header of every model can be read whole, and the default model is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.doctor.finding import Finding, failure, ok, warning

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "models"


def check(what: Examined) -> Iterator[Finding]:
    from inferd.front.catalog import StoreCatalog
    from inferd.load.store import Store

    configured = {name: own.path for name, own in what.config.models.items() if own.path}
    catalog = StoreCatalog(Store(what.paths.models), configured)
    found = catalog.list()
    for model in found:
        yield _judge(model.name, Path(model.path), model.problem, in_store=model.name not in configured)
    default = what.config.default_model
    if default not in {model.name for model in found}:
        yield warning(TOPIC, f"the default model {default} is not here", f"inferd pull {default}, or set default_model")


def _judge(name: str, path: Path, problem: str, *, in_store: bool) -> Finding:
    """Open a model as a load does, headers only."""
    from inferd.load.checkpoint import open_checkpoint
    from inferd.load.errors import LoadError

    remedy = f"inferd rm {name}, then inferd pull {name}" if in_store else f"set models.{name}.path"
    if problem:
        return failure(TOPIC, f"{name}: {problem}", remedy)
    try:
        checkpoint = open_checkpoint(path)
    except LoadError as error:
        return failure(TOPIC, f"{name}: {error}", remedy)
    try:
        return ok(TOPIC, f"{name}: {len(checkpoint.tensors())} tensors in {path}")
    finally:
        checkpoint.close()
