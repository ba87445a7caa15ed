"""Parts of the front on their own: outbox, ledger, loop, text client's order, logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.schema import Log
from inferd.devices import HostMemory
from inferd.front.catalog import StoreCatalog
from inferd.front.ledger import Ledger
from inferd.front.outbox import Outbox, Piece, Stream
from inferd.load.store import Store
from inferd.log import clean, make_logger
from inferd.loop import Loop
from inferd_client import protocol as p
from tests.tiny import tiny_llama

MIB = 1 << 20


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.text(max_size=3)), max_size=40),
    st.lists(st.booleans(), max_size=80),
)
def test_an_outbox_loses_reorders_and_renumbers_nothing(pieces: list[tuple[int, int, str]], goes: list[bool]) -> None:
    """Whatever is sent when: per choice the text and ids in order, per request numbers without a gap."""
    outbox, streams, sent = Outbox(), [Stream(f"r{i}") for i in range(3)], list[p.Reply]()
    answers = iter(goes)

    def send(reply: p.Reply) -> bool:
        if next(answers, True):
            sent.append(reply)
            return True
        return False

    for i, (request, choice, text) in enumerate(pieces):
        outbox.put_piece(streams[request], Piece(choice, text, (i,)))
        if i % 3 == 0:
            outbox.flush(send)
    while not outbox.flush(send):
        pass
    assert (len(outbox), outbox.output_bytes) == (0, 0)
    for request in range(3):
        mine = [m for m in sent if isinstance(m, p.Tokens) and m.id == f"r{request}"]
        assert [m.seq for m in mine] == list(range(len(mine)))
        for choice in range(2):
            wanted = [(t, i) for i, (r, c, t) in enumerate(pieces) if (r, c) == (request, choice)]
            assert "".join(m.text for m in mine if m.choice == choice) == "".join(t for t, _ in wanted)
            assert [i for m in mine if m.choice == choice for i in m.ids] == [i for _, i in wanted]


def test_waiting_output_of_a_choice_is_merged_and_can_be_dropped() -> None:
    outbox, first, second, sent = Outbox(), Stream("a"), Stream("b"), list[p.Reply]()
    for i in range(100):
        outbox.put_piece(first, Piece(0, "x", (i,)))
        outbox.put_piece(second, Piece(0, "y", (i,), logprobs=(p.TokenLogprob(token=i, logprob=0.0, rank=1),)))
    outbox.put_piece(second, Piece(0, finish="stop"))
    assert len(outbox) == 2
    outbox.drop(first)
    assert outbox.flush(lambda reply: not sent.append(reply))
    (tokens,) = sent
    assert isinstance(tokens, p.Tokens)
    assert (tokens.id, tokens.seq, tokens.text, tokens.finish) == ("b", 0, "y" * 100, "stop")
    assert tokens.logprobs is not None
    assert [lp.token for lp in tokens.logprobs] == list(range(100))


class TestLedger:
    def ledger(self, free: int, limit: int = 0) -> Ledger:
        return Ledger(limit, 1000 * MIB, lambda: HostMemory(total=9000 * MIB, free=free))

    def test_a_grant_is_all_the_room_and_settles_to_what_is_used(self) -> None:
        ledger = self.ledger(5000 * MIB)
        assert ledger.grant("cpu", "a", 100 * MIB) == 4000 * MIB
        assert ledger.grant("cpu", "b", 1) is None
        ledger.settle("cpu", "a", 1500 * MIB)
        assert ledger.grant("cpu", "b", 2501 * MIB) is None
        assert ledger.grant("cpu", "b", 2500 * MIB) == 2500 * MIB
        ledger.release("a")
        assert ledger.room("cpu") == 1500 * MIB

    def test_a_limit_of_the_config_is_the_limit(self) -> None:
        assert self.ledger(5000 * MIB, limit=200 * MIB).room("cpu") == 200 * MIB

    def test_a_machine_smaller_than_the_reserve_grants_nothing(self) -> None:
        assert self.ledger(500 * MIB).grant("cpu", "a", 1) is None

    def test_an_unknown_device_refuses_nothing_and_invents_no_numbers(self) -> None:
        ledger = self.ledger(5000 * MIB)
        assert ledger.grant("cuda:0", "a", 10**15) == 0
        device = ledger.statuses()[1]
        assert (device.name, device.total_bytes, device.free_bytes, device.limit_bytes) == ("cuda:0", None, None, None)

    def test_a_model_moves_to_the_device_where_it_is(self) -> None:
        ledger = self.ledger(5000 * MIB)
        ledger.grant("cpu", "a", 1)
        ledger.settle("cuda:0", "a", 700)
        assert ledger.room("cpu") == 4000 * MIB
        assert ledger.devices["cuda:0"].grants == {"a": 700}


class TestLoop:
    def test_timers_run_in_order_and_cancelled_ones_are_forgotten(self) -> None:
        now = [0.0]
        loop, ran = Loop(lambda: now[0]), list[str]()
        loop.after(0.002, lambda: ran.append("second"))
        loop.after(0.001, lambda: ran.append("first"))
        loop.after(0.001, lambda: ran.append("never")).cancel()
        loop.after(9, lambda: ran.append("later"))
        now[0] = 1.0
        loop.run_once()
        assert ran == ["first", "second"]

    def test_a_million_cancelled_timers_take_no_space(self) -> None:
        loop = Loop()
        for _ in range(50_000):
            loop.after(3600, lambda: None).cancel()
        assert len(loop._timers) < 5_000


@pytest.mark.parametrize("plain", [True, False])
def test_logs_are_json_off_a_terminal_and_escape_what_clients_chose(
    plain: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if plain:
        monkeypatch.setitem(sys.modules, "structlog", None)
    log = make_logger(Log(level="info"), "front")
    log.debug("unseen")
    log.info("request", id="\x1b[31mred\n", tokens=3)
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["event"], found["level"], found["part"], found["tokens"]) == ("request", "info", "front", 3)
    assert found["id"] == "\\x1b[31mred\\n"
    assert clean("tab\tünïcode") == "tab\\tünïcode"


def test_a_model_of_the_config_is_known_by_its_name(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "somewhere")
    catalog = StoreCatalog(Store(tmp_path / "store"), {"mine": str(folder), "gone": str(tmp_path / "gone")})
    assert catalog.resolve("mine")[:2] == ("mine", str(folder))
    listed = {info.name: info for info in catalog.list()}
    assert listed["mine"].bytes > 0
    assert not listed["mine"].problem
    assert "models.gone.path" in listed["gone"].problem
