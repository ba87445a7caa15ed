"""What panels compute: rates from counters, the split of memory, the marks, the journal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_client.protocol import CostStatus, DeviceStatus, MemoryUse, ModelStatus, StatusReply, Utilisation
from inferd_tui.frame import Frame
from inferd_tui.glyphs import ASCII, UNICODE
from inferd_tui.history import History, total
from inferd_tui.journal import Journal
from inferd_tui.panels.memory import Memory, shares, used_bytes
from inferd_tui.panels.throughput import Throughput
from inferd_tui.units import money, percent, quantity, rate, short_size

SHARES = st.lists(st.floats(0, 1), min_size=6, max_size=6)


def at(second: float, tokens: float | None, instance: str = "i") -> StatusReply:
    counters = {} if tokens is None else {"inferd_out_total": tokens}
    return StatusReply(instance=instance, uptime_s=second, counters=counters)


def test_rates_are_over_the_last_seconds() -> None:
    history = History()
    assert history.rate("out_total") is None
    for second in range(21):
        history.add(at(second, 10.0 * second if second < 10 else 100.0 * second))
    assert history.rate("out_total") == 100.0
    assert history.rate("other_total") is None
    assert history.rates("out_total")[:3] == [10.0] * 3
    frozen = history.copy()
    history.add(at(21, 0))
    assert history.rate("out_total", 0.5) == 0.0
    assert frozen.rate("out_total") == 100.0


def test_close_snapshots_are_skipped_and_a_new_daemon_starts_over() -> None:
    history = History()
    for second in (1.0, 1.1, 1.2, 2.0):
        history.add(at(second, second))
    assert history.gauge(lambda s: s.uptime_s) == [1.0, 2.0]
    history.add(at(0.5, 1.0, "other"))
    assert history.gauge(lambda s: s.uptime_s) == [0.5]
    assert history.rate("out_total") is None


def test_labelled_counters_are_summed() -> None:
    status = StatusReply(counters={'inferd_e_total{code="a"}': 2, 'inferd_e_total{code="b"}': 3, "inferd_e_totals": 9})
    assert total(status, "e_total") == 5
    assert total(status, "x_total") is None


@given(SHARES, st.integers(0, 60))
def test_a_stack_fills_its_width(shares: list[float], width: int) -> None:
    for glyphs in (UNICODE, ASCII):
        assert len(glyphs.stack(shares, width)) == width
        assert len(glyphs.bar(shares[0], width)) == width
        assert len(glyphs.spark([None, *shares], width)) == width


def test_a_little_shows_and_nothing_does_not() -> None:
    assert ASCII.bar(0.001, 10) == "#........."
    assert ASCII.bar(0, 10) == ASCII.bar(None, 10) == "." * 10
    assert ASCII.stack([0.2, 0, 0.3, 0, 0, 0], 10) == "WWkkk....."
    assert ASCII.spark([None, 0, 1], 4) == "  _#"
    assert ASCII.text("größe\x1b[1m") == "gr??e?[1m"


def test_memory_is_split_among_what_is_known() -> None:
    memory = MemoryUse(weights=200, kv_used=400, kv_free=200, activations=None, process=100, other=600)
    device = DeviceStatus(name="cpu", total_bytes=2000, free_bytes=700, memory=memory)
    assert (used_bytes(device), shares(device)) == (1300, [0.1, 0.2, 0.1, 0.0, 0.05, 0.3])
    lines = [line.plain for line in Memory().lines(frame(device), 40, 9)]
    assert lines[0] == "cpu (system memory) 1.3K used of 2.0K"
    assert lines[1] == glyph_bar("████▓▓▓▓▓▓▓▓▒▒▒▒▚▚▞▞▞▞▞▞▞▞▞▞▞▞")
    assert "activations n/a" in lines[4]
    assert "others  600B" in lines[4]
    nothing = DeviceStatus(name="cuda:0")
    assert (used_bytes(nothing), shares(nothing)) == (None, [0.0] * 6)
    assert "\n".join(line.plain for line in Memory().lines(frame(nothing), 40, 9)).count("n/a") == 8


def frame(*devices: DeviceStatus) -> Frame:
    return Frame(status=StatusReply(devices=devices), history=History())


def glyph_bar(marks: str) -> str:
    return marks.ljust(40, UNICODE.empty)


def test_a_gpu_tells_its_sensors_or_why_not() -> None:
    gpu = DeviceStatus(
        name="cuda:0", total_bytes=8 << 30, free_bytes=4 << 30, utilization=0.83, power_w=298.6, temperature_c=61
    )
    assert Memory().lines(frame(gpu), 60, 9)[0].plain == "cuda:0 4.0G used of 8.0G  83% busy  299W  61C"
    lost = DeviceStatus(name="cuda:0", problem="GPU is lost")
    assert Memory().lines(frame(lost), 60, 9)[0].plain == "cuda:0 n/a used of n/a  GPU is lost"
    shared = DeviceStatus(name="cuda:0", total_bytes=8 << 30, free_bytes=4 << 30, unified=True)
    assert Memory().lines(frame(shared), 60, 9)[0].plain == "cuda:0 (system memory) 4.0G used of 8.0G"


def test_use_and_cost_say_where_they_come_from() -> None:
    use = Utilisation(mfu=0.5, mbu=0.25, weight_share=0.713)
    model = ModelStatus(name="m", state="ready", utilisation=use)
    cost = CostStatus(
        source="measured", currency="EUR", watts=51.4, per_million=1.234, prefill_per_million=0.2, idle_per_million=1.0
    )
    status = StatusReply(models=(model,), cost=cost)
    lines = [line.plain for line in Throughput().lines(Frame(status=status, history=History()), 60, 9)]
    assert lines[5:] == [
        "MFU 50.0% MBU 25.0% weights/KV 71/29%",
        "power 51W cost 1.23 EUR/M measured",
        "of it prefill 0.2  decode n/a  idle 1.00",
    ]


@pytest.mark.parametrize(
    ("cost", "wanted"),
    [
        (CostStatus(), "power n/a cost n/a"),
        (CostStatus(source="estimated", watts=20.0), "power 20W cost n/a"),
        (CostStatus(source="estimated", watts=20.0, output_tokens=9), "power 20W cost n/a: no token was in time"),
        (CostStatus(watts=20.0, output_tokens=9, good_tokens=9), "power 20W cost n/a"),
    ],
)
def test_why_there_is_no_cost(cost: CostStatus, wanted: str) -> None:
    frame = Frame(status=StatusReply(cost=cost), history=History())
    assert Throughput().lines(frame, 60, 9)[6].plain == wanted


def test_eight_devices_fit_in_what_there_is() -> None:
    devices = tuple(DeviceStatus(name=f"cuda:{i}", total_bytes=80 << 30, free_bytes=1 << 30) for i in range(8))
    lines = [line.plain for line in Memory().lines(frame(*devices), 40, 5)]
    assert lines[0] == "cuda:0: 79G used of 80G"
    assert (len(lines), lines[-1]) == (5, "and 6 devices more")
    assert len(Memory().lines(frame(*devices), 40, 16)) == 16


def test_the_journal_tells_news_once() -> None:
    journal = Journal(lambda: "now")
    base = StatusReply(version="1", pid=5, instance="i", warnings=("m is stalled: 3 s",))
    journal.snapshot(base)
    journal.snapshot(StatusReply(version="1", instance="i", warnings=("m is stalled: 4 s",), state="draining"))
    counters = {'inferd_request_error_total{code="overloaded"}': 2.0}
    journal.snapshot(StatusReply(version="1", instance="i", counters=counters, state="draining"))
    journal.snapshot(StatusReply(version="1", instance="i", counters=counters, state="draining"))
    assert journal.lines == (
        "now watching inferd 1, pid 5, serving",
        "now warning: m is stalled: 3 s",
        "now the daemon is draining",
        "now 2 requests ended with overloaded",
    )


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (short_size(None), "n/a"),
        (short_size(0), "0B"),
        (short_size(999), "999B"),
        (short_size(138 << 20), "138M"),
        (short_size(1288490189), "1.2G"),
        (short_size(5 << 50), "5120T"),
        (rate(None), "n/a"),
        (rate(0.0), "0.0"),
        (rate(1234.5), "1,234"),
        (money(None, "EUR"), "n/a"),
        (money(0.012345, "EUR"), "0.0123 EUR"),
        (money(12.345, ""), "12.35"),
        (quantity(None, "B/s"), "n/a"),
        (quantity(0.0, "W"), "0 W"),
        (quantity(51.34e9, "B/s"), "51.3 GB/s"),
        (quantity(999.7e6, "B/s"), "1 GB/s"),
        (quantity(999.4e6, "B/s"), "999 MB/s"),
        (quantity(999e17, "J"), "9.99e+04 PJ"),
        (percent(1, 0), "n/a"),
        (percent(None, 3), "n/a"),
        (percent(1, 3), "33.3%"),
    ],
)
def test_units(call: str, wanted: str) -> None:
    assert call == wanted
