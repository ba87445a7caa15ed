"""Folders and sockets: XDG, systemd, the config's own, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferd.config.errors import ConfigError
from inferd.config.paths import RANK_SOCKET, RuntimePaths, make_private
from inferd.config.schema import Config, Paths
from inferd_client.endpoints import CONTROL_SOCKET, Endpoints, default_runtime_dir

VARIABLES = [
    "XDG_RUNTIME_DIR",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CACHE_DIRECTORY",
]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_xdg_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    for name, folder in [("RUNTIME_DIR", "run"), ("DATA_HOME", "data"), ("CACHE_HOME", "c"), ("STATE_HOME", "s")]:
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path / folder))
    paths = RuntimePaths.of(Config())
    assert paths.runtime == tmp_path / "run" / "inferd"
    assert paths.models == tmp_path / "data" / "inferd" / "models"
    assert (paths.cache, paths.state) == (tmp_path / "c" / "inferd", tmp_path / "s" / "inferd")


def test_relative_xdg_values_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert RuntimePaths.of(Config()).cache == Path.home() / ".cache" / "inferd"


def test_a_service_uses_the_folders_systemd_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/inferd:/run/other")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/inferd")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/inferd")
    paths = RuntimePaths.of(Config())
    assert (paths.runtime, paths.state) == (Path("/run/inferd"), Path("/var/lib/inferd"))
    assert (paths.models, paths.cache) == (Path("/var/lib/inferd/models"), Path("/var/cache/inferd"))


def test_the_config_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/inferd")
    named = Paths(runtime=str(tmp_path / "r"), models="~/m", cache="c", state="/s")
    paths = RuntimePaths.of(Config(paths=named))
    assert (paths.runtime, paths.models) == (tmp_path / "r", Path.home() / "m")
    assert (paths.cache, paths.state) == (Path.cwd() / "c", Path("/s"))


@pytest.mark.parametrize("xdg", ["ours", "open to others", "absent", "unset"])
def test_daemon_and_client_agree_on_the_sockets(xdg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if xdg != "absent":
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(0o700 if xdg == "ours" else 0o755)
    if xdg != "unset":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    paths, ends = RuntimePaths.of(Config()), Endpoints.in_dir(default_runtime_dir())
    assert [f"ipc://{p}" for p in (paths.data, paths.control, paths.events)] == [ends.data, ends.control, ends.events]
    assert paths.lock.parent == paths.runtime
    assert (paths.runtime.parent == tmp_path / "run") == (xdg == "ours")


def test_the_length_of_a_socket_path_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    room = 107 - len(os.fsencode(tmp_path)) - len("//control.sock")
    RuntimePaths.of(Config(paths=Paths(runtime=str(tmp_path / ("x" * room)))))
    too_long = tmp_path / ("x" * (room + 1))
    with pytest.raises(ConfigError, match=r"108 bytes.*shorter"):
        RuntimePaths.of(Config(paths=Paths(runtime=str(too_long))))
    assert not too_long.exists()


def test_no_socket_between_our_processes_is_longer_than_those_of_clients() -> None:
    """So that a folder which suits clients suits every worker and rank in it."""
    assert max(map(len, (RANK_SOCKET, "e99999.sock", "t99999.sock"))) <= len(CONTROL_SOCKET)


def test_a_private_folder_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_private(folder)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_open_to_others_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=f"chmod 700 {tmp_path}"):
        make_private(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(ConfigError, match=r"belongs to user 12345, not to 0; set another paths\.runtime"):
        make_private(tmp_path)


def test_links_and_files_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        make_private(tmp_path / "link")
    with pytest.raises(ConfigError, match="cannot make"):
        make_private(tmp_path / "file")


def test_a_missing_parent_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/a does not exist"):
        make_private(tmp_path / "a" / "b" / "c")
    assert not (tmp_path / "a").exists()
