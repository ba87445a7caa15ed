"""What `make demo` runs, with a short answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferd.cli import demo

pytestmark = [pytest.mark.daemon, pytest.mark.smollm2]


def test_the_demo_answers_prints_its_figures_and_stops_its_daemon(
    default_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started = []
    start = demo.subprocess.Popen
    monkeypatch.setattr(demo.subprocess, "Popen", lambda *a, **k: started.append(start(*a, **k)) or started[-1])
    monkeypatch.setattr(demo, "MAX_TOKENS", 4)
    demo.demo("What is 1 + 1?")
    out = capfd.readouterr().out
    assert "> What is 1 + 1?\n\n" in out
    assert re.search(r"TTFT [\d.]+ m?s \(\d+ prompt tokens\), TPOT [\d.]+ m?s, [\d.]+ tokens/s \(4 tokens", out)
    assert [process.returncode for process in started] == [0]
