"""Running checks and what came of them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import msgspec

    from inferd.plugin.contracts import Plugin, PluginSpec


class SkipCheckError(Exception):
    """The plugin declares that it does not offer what this check is about."""


class NonconformanceError(Exception):
    """The plugin broke its contract."""


def require(condition: object, message: str) -> None:
    """Raise NonconformanceError with `message` unless `condition` holds."""
    if not condition:
        raise NonconformanceError(message)


@dataclass(frozen=True)
class Subject:
    """The plugin under test and what the checks may need to know of it."""

    spec: PluginSpec
    cls: type[Plugin]
    options: msgspec.Struct | None = None
    device: str = "cpu"
    config: Mapping[str, Any] | None = None
    """Architectures: a configuration of a small model of this kind; None = the kit's own."""
    source: Literal["hf", "gguf"] = "hf"
    table: Mapping[str, Any] = field(default_factory=dict)
    """The options as written in the config file."""

    def make(self) -> Any:
        """Build a new object of the plugin."""
        return self.cls(self.options)


Check = Callable[[Subject], None]
"""One check; its name is what a report calls it, its docstring says what it shows."""


@dataclass(frozen=True, slots=True)
class Result:
    check: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all checks of one plugin."""

    kind: str
    name: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(r.check for r in self.results if r.outcome == "failed")

    def __str__(self) -> str:
        width = max((len(r.check) for r in self.results), default=0)
        lines = [f"{r.check:<{width}}  {r.outcome:<7}  {r.message}".rstrip() for r in self.results]
        verdict = "conforms" if self.ok else f"FAILED {len(self.failed)} of {len(self.results)} checks"
        return "\n".join([f"{self.kind} {self.name}: {verdict}", *lines])


def run_checks(subject: Subject, checks: Sequence[Check]) -> Report:
    """Run the checks one after the other; whatever a plugin raises fails that check only."""
    results = tuple(_run(subject, check) for check in checks)
    return Report(subject.spec.kind, subject.spec.name, results)


def check_name(check: Check) -> str:
    return cast("Any", check).__name__


def _run(subject: Subject, check: Check) -> Result:
    name, start = check_name(check), time.monotonic()
    try:
        check(subject)
    except SkipCheckError as skip:
        return Result(name, "skipped", str(skip))
    except NonconformanceError as fault:
        return Result(name, "failed", str(fault), time.monotonic() - start)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return Result(name, "failed", message, time.monotonic() - start)
    return Result(name, "passed", seconds=time.monotonic() - start)
