"""The file of a channel says when something has come, to code that cannot ask the channel itself."""

from __future__ import annotations

import select
from pathlib import Path

from inferd.channel import Channel
from inferd.link import Abort, Idle, engine_in, engine_out

PATIENCE_S = 10.0


def is_readable(channel: Channel, patience_s: float = 0.0) -> bool:
    return bool(select.select([channel.file], [], [], patience_s)[0])


def test_the_file_is_readable_from_a_message_until_all_are_taken(tmp_path: Path) -> None:
    child = Channel(tmp_path / "link.sock", bind=True, decoder=engine_in)
    front = Channel(tmp_path / "link.sock", bind=False, decoder=engine_out)
    child.send(Idle(now=0.0))
    assert front.wait(PATIENCE_S)
    assert len(front.recv_all()) == 1
    for round_ in range(50):
        child.recv_all()
        assert not is_readable(child), "nothing was sent"
        child.send(Idle(now=float(round_)))
        for key in "ab":
            front.send(Abort(key=key))
        assert is_readable(child, PATIENCE_S)
        got: list[object] = []
        while len(got) < 2:
            got += child.recv_all()
        front.recv_all()
    child.close()
    front.close()
