"""Goals, and the rows that results are made of. Goals are for the sizes of a real run, not for those of a dry one."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Goal(NamedTuple):
    """What a figure has to be: the first step now, the others later."""

    sense: Literal[">=", "<="]
    steps: tuple[float, ...]

    @property
    def text(self) -> str:
        return f"{self.sense} " + ", then ".join(f"{step:g}" for step in self.steps)

    def verdict(self, value: float) -> str:
        """Return `missed`, or the hardest step that was reached."""
        held = [step for step in self.steps if (value >= step if self.sense == ">=" else value <= step)]
        return f"reached {held[-1]:g}" if held else "missed"


def at_least(*steps: float) -> Goal:
    return Goal(">=", steps)


def at_most(*steps: float) -> Goal:
    return Goal("<=", steps)


def row(case: str, value: float, of: str, goal: Goal | None = None) -> dict[str, Any]:
    """Return one figure; `of` is its unit, or what it is a multiple of."""
    found: dict[str, Any] = {"case": case, "value": value, "of": of}
    return found if goal is None else found | {"goal": goal.text, "verdict": goal.verdict(value)}


def check(case: str, ok: bool, value: Any) -> dict[str, Any]:
    """Return something that has to hold."""
    return {"case": case, "value": value, "ok": ok}


def failure(case: str, error: Exception) -> dict[str, Any]:
    return check(case, False, f"{type(error).__name__}: {error}"[:300])
