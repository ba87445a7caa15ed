"""Clients take turns at the text process."""

from __future__ import annotations

from inferd.front.turns import Turns
from inferd_client import protocol as p
from tests.front.harness import daemon, eventually
from tests.front.test_faults import worker_pid


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        turns.push(ord(item[0]), item)
    assert turns.pop() == "a1"
    turns.push(ord("d"), "d1")
    turns.put_first(["x", "y"])
    assert list(turns) == ["x", "y", "b1", "b2", "c1", "a2", "a3", "d1"]
    assert [turns.pop() for _ in range(8)] == ["x", "y", "b1", "c1", "a2", "d1", "b2", "a3"]
    assert not turns


def test_texts_of_one_client_do_not_hold_up_those_of_another() -> None:
    with daemon(config={"text": {"timeout_s": 1.5}}) as running:
        hog, guest = running.client("hog"), running.client("guest")
        worker_pid(guest)
        hung = [hog.generate(f"<hang> {i}") for i in range(30)]
        eventually(lambda: len(guest.status().requests) >= 25)
        assert guest.run("quick")[0] == "quick"
        assert len(guest.status().requests) >= 15
        for request in hung:
            hog.call(p.Cancel(id=request, request=request))
