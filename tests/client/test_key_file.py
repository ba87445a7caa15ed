"""Key files: read whole or refused with the reason, and never when others can read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import inferd_client as ic

GOOD = 'server = "tcp://host:5555"\n' + "".join(
    f'{name} = "{char * 40}"\n' for name, char in zip(("server_key", "public_key", "secret_key"), "abc", strict=True)
)


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "me.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_says_where_and_with_which_keys(tmp_path):
    found = ic.KeyFile.load(write(tmp_path, GOOD))
    assert found.endpoints == ic.Endpoints("tcp://host:5555", "tcp://host:5556", "tcp://host:5557")
    assert found.curve == ic.Curve(server_key=b"a" * 40, public_key=b"b" * 40, secret_key=b"c" * 40)
    client = ic.Client(key_file=tmp_path / "me.key")
    assert client.endpoints == found.endpoints


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620])
def test_a_file_that_others_reach_is_refused_with_the_remedy(tmp_path, mode):
    with pytest.raises(ValueError, match=f"chmod 600 {tmp_path}/me.key"):
        ic.Client(key_file=write(tmp_path, GOOD, mode))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lacks server, server_key, public_key, secret_key"),
        (GOOD.replace("server_key", "serverkey"), "lacks server_key"),
        (GOOD.replace('"' + "c" * 40, '"' + "c" * 39), "secret_key is not a key"),
        (GOOD.replace("a" * 40, "ä" * 40), "server_key is not a key"),
        (GOOD.replace("tcp://host:5555", "ipc:///x"), "server: 'ipc:///x' is not tcp://"),
        (GOOD.replace('"tcp', "tcp"), "not a key file"),
        ("\0\xff", "not a key file"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path, text, reason):
    with pytest.raises(ValueError, match=reason):
        ic.KeyFile.load(write(tmp_path, text))


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no\.key: No such file"):
        ic.KeyFile.load(tmp_path / "no.key")


def test_there_is_one_way_to_say_where_the_daemon_is(tmp_path):
    with pytest.raises(ValueError, match="leave out"):
        ic.Client(tmp_path, key_file=write(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("address", "data"),
    [("tcp://h:1", "tcp://h:1"), ("tcp://[::1]:9", "tcp://[::1]:9"), ("tcp://10.0.0.1:65533", "tcp://10.0.0.1:65533")],
)
def test_tcp_addresses(address, data):
    assert ic.Endpoints.tcp(address).data == data
    assert ic.Endpoints.tcp(address).runtime is None
