"""A daemon or machine that was paused hears nobody: that must not count as the silence of its children."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from inferd.config.schema import Config, Log, Text
from inferd.front.model import Model
from inferd.front.text_process import SILENCE_S, TextProcess
from inferd.front.watch import TICK_S, Watch
from inferd.link import TextJob, TextOpen, TextResult
from inferd.log import make_logger
from inferd.loop import MAX_WAIT_S, PAUSE_S, Loop
from inferd.metrics import Metrics
from inferd.text.pool import Pool
from tests.front.harness import eventually

STALL_S = 20.0
JOB = TextJob(key="k", model="m", text="<hang>")


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A loop on a clock that tests move."""

    def __init__(self) -> None:
        self.time = Time()
        self.loop = Loop(self.time)

    def turn(self, seconds: float = 0.0) -> None:
        """Let a turn of the loop end so late. It does not wait: a timer is due."""
        self.loop.after(0.0, lambda: None)
        self.time.now += seconds
        self.loop.run_once()

    def turns(self, seconds: float) -> None:
        """Let time pass with the loop at work."""
        for _ in range(int(seconds / TICK_S)):
            self.turn(TICK_S)


def test_what_a_turn_is_late_is_a_pause_and_what_it_waits_is_none() -> None:
    rig = Rig()
    rig.turns(60.0)
    rig.turn(PAUSE_S)
    assert rig.loop.paused_s == 0.0
    rig.turn(300.0)
    assert rig.loop.paused_s == 300.0
    assert rig.loop.awake == rig.time.now - 300.0


def test_time_in_a_handler_is_a_pause_too() -> None:
    rig = Rig()

    def long() -> None:
        rig.time.now += 50.0

    rig.loop.after(0.0, long)
    rig.turn()
    rig.turn()
    assert rig.loop.paused_s == 50.0


def test_a_wait_that_was_wanted_is_none() -> None:
    loop = Loop()
    loop.after(MAX_WAIT_S, lambda: None)
    for _ in range(2):
        loop.run_once()
    assert loop.paused_s == 0.0 or loop.paused_s > PAUSE_S


class Models:
    """In place of the models: one, and what befell it."""

    def __init__(self, rig: Rig) -> None:
        self.model: Any = Model(
            name="m", path="", file_bytes=0, config=Config(), device="cpu", is_default=True, keep_alive_s=-1.0
        )
        self.model.state, self.model.card, self.model.child, self.model.num_submitted = "ready", object(), object(), 1
        self.model.last_step = self.model.last_heard = rig.time.now
        self.killed, self.stalls = 0, 0

    def all(self) -> list[Any]:
        return [self.model]

    def stalled(self, model: Any) -> None:
        self.stalls += 1
        model.stalled = True

    def give_up_worker(self, model: Any, why: str) -> None:
        self.killed += 1


@pytest.mark.parametrize("has_work", [0, 1])
def test_a_worker_is_not_ended_for_a_pause_of_the_daemon(has_work: int) -> None:
    rig = Rig()
    models: Any = Models(rig)
    models.model.num_submitted = has_work
    log: Any = SimpleNamespace(warning=lambda *_, **__: None)
    Watch(models, rig.loop, log, STALL_S)
    rig.turns(2.0)
    rig.turn(1000.0)
    rig.turns(STALL_S - 3.0)
    assert (models.stalls, models.killed) == (0, 0)
    rig.turns(4.0)
    assert (models.stalls, models.killed) == (1, 0)
    rig.turns(STALL_S)
    assert models.killed


@pytest.fixture
def text(short_folder: Path) -> Iterator[tuple[Rig, TextProcess]]:
    rig, context = Rig(), zmq.Context()
    numbers = itertools.count()
    process = TextProcess(
        TextOpen(model="m", path=""),
        links=lambda: short_folder / f"t{next(numbers)}.sock",
        module="inferd.front.fake_text",
        settings=Text(timeout_s=STALL_S),
        context=context,
        loop=rig.loop,
        metrics=Metrics(),
        log=make_logger(Log(level="error"), "test"),
    )
    yield rig, process
    process.close("the test is over")
    context.term()


def test_a_text_is_not_given_up_for_a_pause_of_the_daemon(text: tuple[Rig, TextProcess]) -> None:
    rig, process = text
    results: list[TextResult] = []
    process.submit(TextJob(key="first", model="m", text="x"), 1, results.append)

    def answered() -> bool:
        rig.turn()
        return bool(results)

    eventually(answered)
    process.submit(JOB, 1, results.append)
    pid = process.pid
    rig.turn(1000.0)
    process.check_time()
    assert (process.pid, len(results)) == (pid, 1)
    rig.turns(STALL_S + SILENCE_S + 1.0)
    process.check_time()
    assert (process.pid, len(results)) == (None, 1), "it owed an answer: another is to start, and to get the job again"


def test_a_text_is_not_given_up_for_a_pause_of_the_text_process() -> None:
    rig = Rig()
    results: list[TextResult] = []
    pool = Pool(lambda _: TextResult(key=str(time.sleep(600))), STALL_S, rig.loop, results.append)
    pool.submit(JOB)
    rig.turn(1000.0)
    rig.turns(STALL_S - 3.0)
    assert not results
    rig.turns(4.0)
    assert "text.timeout_s = 20 s" in results[0].error
    pool.renew()
