"""The gateway of a daemon on another machine: over tcp, with the rights of its key."""

from __future__ import annotations

from pathlib import Path

from tests.cli.tool import Tool
from tests.front.test_tcp import Place, place
from tests.gateway.running import Running
from tests.gateway.test_command import port_of, started

__all__ = ["place"]


def test_a_key_of_a_user_serves_http(place: Place, tmp_path: Path) -> None:
    key = place.key("alice", "user")
    place.start(models=["one", "two"])
    tool = Tool(tmp_path, tmp_path / "no-daemon-here")
    with started(tool, "--no-auth", before=("--key", str(key))) as (line, _):
        running = Running(port_of(line), None)
        assert running.raw("GET", "/health").status == 200
        with running.openai() as client:
            assert {model.id for model in client.models.list()} == {"one", "two"}
            assert client.completions.create(model="one", prompt="over the wire").choices[0].text == "over the wire"
            stream = client.chat.completions.create(
                model="one", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "stop"
        assert running.post("/v1/completions", prompt="x", model="/etc/passwd").status == 404


def test_a_key_file_that_is_none_is_said_at_once(tmp_path: Path) -> None:
    tool = Tool(tmp_path, tmp_path / "run")
    bad = tmp_path / "bad.key"
    bad.touch(mode=0o600)
    ran = tool("--key", str(bad), "gateway", "--no-auth", "--port", "0")
    assert (ran.code, ran.out) == (78, "")
    assert "is not a key file" in ran.err
