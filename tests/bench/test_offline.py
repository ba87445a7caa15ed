"""What the offline benchmark computes from times, and one real run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.bench import offline, phases, render
from inferd.bench.workloads import long_tailed, poisson, prompts, uniform
from inferd.config.schema import Config, Engine
from inferd.engine.offline import Result
from inferd.engine.settings import WorkerSettings


def result(arrival: float, *times: float) -> Result:
    return Result(ids=list(range(len(times))), arrival=arrival, times=list(times))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch):
    """Let the engine give results with known times."""

    def give(*results: Result) -> None:
        found = {(str(i), 0): r for i, r in enumerate(results)}
        monkeypatch.setattr(phases, "run", lambda _engine, _requests: found)

    return give


def test_rates_of_one_sequence(answers) -> None:
    answers(result(10.0, 10.5))
    assert phases.prefill(None, 1000, 0, prompt=100) == 200
    answers(result(0.0, 1.0, 1.1, 1.2))
    assert phases.decode(None, 1000, 0, context=0, output=3) == pytest.approx(10)


def test_only_the_time_in_which_all_decode_counts(answers) -> None:
    early, late = result(0.0, 1.0, 2.0, 3.0, 4.0), result(0.0, 2.0, 3.0, 4.0, 5.0)
    answers(early, late)
    found = phases.batched(None, 1000, 0, count=2, prompt=4, output=4)
    assert found.decode == 4 / 2  # both at 3 and 4, from 2 to 4
    assert found.total == 8 / 5


def test_mixed_reports_the_worst_gap(answers) -> None:
    answers(result(0.0, 1.0, 1.5, 1.6), result(0.5, 2.0, 2.2), result(0.0, 0.1))
    found = phases.mixed(None, 1000, 0, count=3, prompt=8, output=4)
    assert found.total == 6 / 2.2
    assert (found.ttft, found.worst_gap) == (1.0, 0.5)
    assert found.tpot == pytest.approx((0.3 + 0.2) / 2)


def test_a_failed_request_is_no_result(answers) -> None:
    from inferd.link import SeqError
    from inferd_client.protocol import Code

    bad = result(0.0, 1.0)
    bad.error = SeqError("r0", Code.NUMERIC_ERROR, "not a number")
    answers(bad)
    with pytest.raises(RuntimeError, match="not a number"):
        phases.prefill(None, 1000, 0, prompt=4)


def test_workloads_repeat_by_seed_and_share_nothing() -> None:
    assert prompts(3, 500, [5, 9]) == prompts(3, 500, [5, 9]) != prompts(4, 500, [5, 9])
    assert [len(p) for p in prompts(3, 500, [5, 9])] == [5, 9]
    assert all(100 <= i < 500 for p in prompts(3, 500, [50]) for i in p)
    assert {i for p in prompts(3, 60, [500]) for i in p} == {59}
    assert [(len(r.prompt), r.sampling.max_tokens) for r in uniform(0, 500, count=2, prompt=7, output=3)] == [
        (7, 3)
    ] * 2
    tails = long_tailed(0, 500, count=200, prompt=50, output=20)
    assert all(4 <= len(r.prompt) <= 200 for r in tails)
    assert len({len(r.prompt) for r in tails}) > 20
    times = poisson(1, 4000, 2.0)
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] / 4000 == pytest.approx(0.5, rel=0.1)


@pytest.mark.smollm2
def test_a_report_of_the_default_model(default_model: Path, tmp_path: Path) -> None:
    config = Config(engine=Engine(max_context=256, max_sequences=4))
    settings = WorkerSettings(name="m", path=str(default_model), config=config)
    chosen = [
        offline.Case("prefill 32", "prefill", {"prompt": 32}, {"": "tokens/s"}),
        offline.Case("2 sequences", "batched", {"count": 2, "prompt": 8, "output": 16}, {"decode": "tokens/s"}),
        offline.Case("too long", "prefill", {"prompt": 512}, {"": "tokens/s"}),
    ]
    notes: list[str] = []
    report = offline.run(settings, "here", chosen, repeats=1, note=notes.append)
    assert [row.case for row in report.rows] == ["prefill 32", "2 sequences", "peak memory", "cold start"]
    assert all(0 < row.low <= row.median <= row.high for row in report.rows)
    assert report.shape["max_context"] == 256
    assert len(notes) == 4
    assert len(list(render.cells(report))) == 4
    pytest.importorskip("matplotlib")
    render.picture(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_child_that_cannot_load_says_why(tmp_path: Path) -> None:
    settings = WorkerSettings(name="m", path=str(tmp_path / "none.gguf"), config=Config())
    with pytest.raises(RuntimeError, match=r"none\.gguf"):
        offline.run(settings, "here", offline.cases(), repeats=1, note=lambda _: None)


def test_the_numbers_read_well() -> None:
    assert [render.number(v) for v in (1234.56, 99.96, 3.14159, 0.0123)] == ["1,235", "100", "3.14", "0.0123"]
