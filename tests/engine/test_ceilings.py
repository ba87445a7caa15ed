"""What a worker measures of its machine in idle time, and what it sends beside steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.engine import ceilings
from inferd.engine.ceilings import FILE, fitting, measure
from inferd.engine.worker import serve
from inferd.link import Abort, Ceilings, DeviceUse, EngineIn, Idle, StepReport, Stop
from tests.engine.toy import Clock, Rig


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the work of a slice short; what is measured then says nothing of the machine."""
    for name, value in {"SLICE_S": 0.001, "ROUNDS": 2, "READ_BYTES": 1 << 20, "ROWS": 32, "WIDTH": 64}.items():
        monkeypatch.setattr(ceilings, name, value)


def test_it_is_measured_in_slices_and_remembered(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    found = list(measure("cpu", 2, ("fp32", "int8"), tmp_path / "cache"))
    *pauses, result = found
    assert len(pauses) == 1 + 3 * ceilings.ROUNDS
    assert set(pauses) == {None}
    assert result is not None
    assert result.read_bytes_s > 0
    assert all(result.flops[name] > 0 for name in ("fp32", "int8"))
    assert torch.get_num_threads() == threads
    assert next(measure("cpu", 2, ("int8",), tmp_path / "cache")) == result
    assert len(list(measure("cpu", 1, ("int8",), tmp_path / "cache"))) > 1
    assert len(json.loads((tmp_path / "cache" / FILE).read_text())) == 2
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [FILE]


def test_the_first_starts_measure_again_and_the_best_is_kept_for_a_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time on a busy machine, the third on a busier one."""
    rates = iter((50.0, 80.0, 20.0, 60.0))
    monkeypatch.setattr(ceilings, "_best", lambda work, amount: iter((next(rates),)))

    def start(now: float) -> list[Ceilings | None]:
        return list(measure("cpu", 1, (), tmp_path, wall=lambda: now))

    seen = [start(now) for now in (1e9, 1e9 + 10, 1e9 + 20, 1e9 + 30)]
    assert [[c.read_bytes_s for c in found if c is not None] for found in seen] == [[50], [50, 80], [80, 80], [80]]
    kept = json.loads((tmp_path / FILE).read_text())
    assert list(kept.values()) == [{"read": {"rate": 80.0, "times": 3, "since": 1e9}}]
    later = start(1e9 + 31 * 86400)
    assert [c.read_bytes_s for c in later if c is not None] == [60]


def test_another_format_is_measured_beside_the_one_that_is_known(tmp_path: Path) -> None:
    list(measure("cpu", 1, ("fp32",), tmp_path))
    *_, found = measure("cpu", 1, ("bf16",), tmp_path)
    assert found is not None
    assert set(found.flops) == {"fp32", "bf16"}
    assert next(measure("cpu", 1, ("fp32", "bf16"), tmp_path)) == found


def test_a_format_without_a_product_is_zero() -> None:
    *_, found = measure("cpu", 1, ("fp4",), None)
    assert found is not None
    assert found.flops == {"fp4": 0.0}


@pytest.mark.parametrize("spoilt", [b"", b"[]", b'{"a": 1}', b"\xff"])
def test_a_spoilt_memory_is_measured_again(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / FILE).write_bytes(spoilt)
    *_, found = measure("cpu", 1, ("fp32",), tmp_path)
    assert next(measure("cpu", 1, ("fp32",), tmp_path)) == found


def test_a_folder_that_cannot_be_written_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    *_, found = measure("cpu", 1, ("fp32",), tmp_path / "file" / "cache")
    assert found is not None


class Link:
    """The worker's channel, with messages that come after so many waits."""

    file = -1

    def __init__(self, clock: Clock, *arriving: EngineIn | None) -> None:
        self.clock = clock
        self.arriving = list(arriving)
        self.sent: list[Any] = []

    def wait(self, timeout_s: float) -> None:
        self.clock.now += timeout_s

    def recv_all(self) -> list[EngineIn]:
        if not self.arriving:
            return [Stop()]
        message = self.arriving.pop(0)
        return [] if message is None else [message]

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_idle_seconds_are_for_what_can_wait() -> None:
    """One slice at the start and one an idle second; the result is sent once, and the device is told each second."""
    rig = Rig()
    slices: list[float] = []

    def background() -> Any:
        for _ in range(3):
            slices.append(rig.clock.now)
            yield None
        yield Ceilings(read_bytes_s=5.0, flops={})

    rig.engine._background = background()
    link = Link(rig.clock, *[None] * 6)
    serve(link, rig.engine, rig.clock)  # pyright: ignore[reportArgumentType]
    assert slices == [0.0, 1.0, 2.0]
    assert [type(m) for m in link.sent[:2]] == [StepReport, DeviceUse]
    assert link.sent.count(Ceilings(read_bytes_s=5.0, flops={})) == 1
    assert sum(isinstance(m, Idle) for m in link.sent) >= 4
    assert sum(isinstance(m, DeviceUse) for m in link.sent) >= 5


def test_what_is_known_is_sent_before_the_first_step_and_work_comes_first() -> None:
    rig = Rig()
    rig.submit("a", [1, 2, 3], 4)
    rig.engine._background = iter([Ceilings(read_bytes_s=1.0, flops={}), None])
    link = Link(rig.clock, None, Abort(key="x"), None)
    serve(link, rig.engine, rig.clock)  # pyright: ignore[reportArgumentType]
    assert isinstance(link.sent[0], Ceilings)
    assert not any(isinstance(m, Idle) for m in link.sent)


def test_a_small_gpu_is_measured_with_less() -> None:
    assert fitting(1 << 30, 8 << 30, lambda size: size) == 1 << 30
    assert fitting(1 << 30, (8 << 30) - 1, lambda size: size) == 1 << 29
    assert fitting(8192, 400 << 20, lambda width: 3 * width * width * 2) == 2048
