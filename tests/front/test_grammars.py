"""The grammar process as the front has it: the real process, and grammars that end it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from inferd.config.schema import Log
from inferd.front.grammars import Grammars
from inferd.link import Grammar
from inferd.log import make_logger
from inferd.loop import Loop
from inferd.metrics import Metrics
from tests.grammar.judge import lark, regex, schema

WAIT_S = 60.0
FINE = regex("[ab]{3}")
OVERFLOW = lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1} | r{i + 1} r{i + 1}" for i in range(5000)) + '\nr5000: "a"')
"""Its rules refer to each other five thousand deep: the native stack ends before they do."""
SLOW = schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}})
"""Takes a few tenths of a second."""


@dataclass
class Rig:
    loop: Loop
    grammars: Grammars
    verdicts: list[tuple[str, str]] = field(default_factory=list)
    """(key, verdict) in the order in which they came."""

    def check(self, key: str, grammar: Grammar, client: int = 1) -> None:
        self.grammars.check(key, client, grammar, lambda why: self.verdicts.append((key, why)))

    def wait(self, count: int) -> list[tuple[str, str]]:
        end = time.monotonic() + WAIT_S
        while len(self.verdicts) < count:
            assert time.monotonic() < end, self.verdicts
            self.loop.run_once()
        return self.verdicts

    def wait_for(self, key: str) -> str:
        end = time.monotonic() + WAIT_S
        while key not in dict(self.verdicts):
            assert time.monotonic() < end, self.verdicts
            self.loop.run_once()
        return dict(self.verdicts)[key]


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    """Return rigs by their time limit; their processes end with the test."""
    folder = Path(tempfile.mkdtemp(prefix="infd"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[Rig] = []

    def build(timeout_s: float = 20.0, module: str | None = "inferd.grammar") -> Rig:
        loop = Loop()
        log = make_logger(Log(level="error"), "test")
        made.append(Rig(loop, Grammars(module, timeout_s, folder, context, loop, Metrics(), log)))
        return made[-1]

    yield build
    for rig in made:
        rig.grammars.close()
    context.term()
    shutil.rmtree(folder)


def test_verdicts_are_told_and_remembered(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.check("a", FINE)
    rig.check("b", regex("(?=a)"))
    rig.check("c", FINE)
    assert dict(rig.wait(3)) == {"a": "", "b": dict(rig.verdicts)["b"], "c": ""}
    assert "look-around" in dict(rig.verdicts)["b"]
    pid = rig.grammars.pid
    rig.check("d", regex("(?=a)"))
    assert rig.verdicts[-1] == ("d", dict(rig.verdicts)["b"])  # at once, without the process
    assert rig.grammars.pid == pid


def test_a_grammar_that_ends_the_process_costs_itself_only(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.check("before", FINE)
    rig.check("bomb", OVERFLOW)
    rig.check("after", regex("c"))
    assert rig.wait_for("after") == ""
    assert "SIGSEGV" in rig.wait_for("bomb")
    assert rig.wait_for("before") == ""
    rig.check("again", OVERFLOW)
    assert rig.verdicts[-1] == ("again", dict(rig.verdicts)["bomb"])


def test_one_that_takes_too_much_processor_time_is_given_up(make: Callable[..., Rig]) -> None:
    rig = make(timeout_s=0.05)
    rig.check("slow", SLOW)
    rig.check("fine", FINE)
    assert "grammar.timeout_s = 0.05 s" in rig.wait_for("slow")
    assert rig.wait_for("fine") == ""
    patient = make(timeout_s=20.0)
    patient.check("slow", SLOW)
    assert patient.wait_for("slow") == ""


def test_clients_take_turns(make: Callable[..., Rig]) -> None:
    """Whoever sends many does not keep the others waiting for all of them."""
    rig = make()
    for i in range(6):
        rig.check(f"many{i}", regex(f"a{{{i + 1}}}"), client=1)
    rig.check("one", regex("b"), client=2)
    order = [key for key, _ in rig.wait(7)]
    assert order.index("one") <= 2
    assert [key for key in order if key != "one"] == [f"many{i}" for i in range(6)]


def test_a_cancelled_request_hears_nothing(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.check("at it", SLOW)
    rig.check("waits", regex("d"))
    rig.check("stays", FINE)
    rig.grammars.cancel("at it")
    rig.grammars.cancel("waits")
    rig.grammars.cancel("unknown")
    assert rig.wait(1) == [("stays", "")]
    rig.check("later", SLOW)
    assert rig.verdicts[-1] == ("later", "")  # it was tried to its end, and the verdict kept


def test_a_process_that_does_not_come_up_is_said(make: Callable[..., Rig]) -> None:
    rig = make(module="inferd.no_such_module")
    rig.check("a", FINE)
    assert "ended with exit code 1" in rig.wait_for("a")


def test_without_a_module_everything_passes(make: Callable[..., Rig]) -> None:
    rig = make(module=None)
    rig.check("a", OVERFLOW)
    assert rig.verdicts == [("a", "")]
