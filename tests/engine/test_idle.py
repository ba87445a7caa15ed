"""A loaded worker with nothing to do takes next to no processor time, and steps of another process do not stop it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd.channel import Channel
from inferd.config.schema import Config, Engine
from inferd.engine.settings import WorkerSettings
from inferd.link import Begin, Ready, StepReport, Submit, engine_out
from inferd.process import Child, spawn
from inferd_client.protocol import SamplingParams
from tests.tiny import tiny_gguf

LIMIT = 0.005
"""Share of one CPU."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[Child, Channel[Any]]]:
    settings, link = tmp_path / "settings.json", tmp_path / "w.sock"
    config = Config(engine=Engine(max_sequences=2, max_context=64))
    path = str(tiny_gguf(tmp_path))
    WorkerSettings(name="tiny", path=path, config=config, runtime=str(tmp_path)).save(settings)
    child = spawn("inferd.engine.worker", str(link), "0")
    channel: Channel[Any] = Channel(link, bind=False, decoder=engine_out)
    channel.send(Begin(settings=str(settings)))
    try:
        assert any(isinstance(message, Ready) for message in _until(channel, Ready))
        yield child, channel
    finally:
        child.kill()
        child.reap()
        channel.close()


def _until(channel: Channel[Any], kind: type) -> list[Any]:
    seen: list[Any] = []
    deadline = time.monotonic() + 60
    while not any(isinstance(message, kind) for message in seen):
        assert time.monotonic() < deadline
        channel.wait(1.0)
        seen += channel.recv_all()
    return seen


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads, to the nanosecond (the first field of schedstat)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def test_an_idle_worker_sleeps(worker: tuple[Child, Channel[Any]]) -> None:
    child, channel = worker
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    channel.send(Submit(key="r", client="c", prompt=[3, 4, 5], sampling=sampling, eos_ids=()))
    count = 0
    while count < 30:
        reports = [m for m in _until(channel, StepReport) if isinstance(m, StepReport)]
        count += sum(len(output.ids) for report in reports for output in report.outputs)
    shares = []
    for _ in range(30):  # what it does once, when it is first idle, may take a while
        before, started = cpu_seconds(child.pid), time.monotonic()
        time.sleep(1.0)
        shares.append((cpu_seconds(child.pid) - before) / (time.monotonic() - started))
        if len(shares) > 2 and max(shares[-2:]) < LIMIT:
            break
    assert max(shares[-2:]) < LIMIT, shares
    assert len(os.listdir(f"/proc/{child.pid}/task")) > 1  # the threads are there, asleep
