"""Where the sockets are, and how long their paths may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from inferd_client import endpoints
from inferd_client.endpoints import Endpoints, default_runtime_dir, ensure_private_dir, is_private_dir


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No runtime directory but those a test makes."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(endpoints, "SYSTEM_RUNTIME", tmp_path / "run-inferd")


def private(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def test_xdg_is_used_when_it_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private(tmp_path / "xdg")))
    assert default_runtime_dir() == tmp_path / "xdg" / "inferd"


@pytest.mark.parametrize("value", ["", "relative", "{tmp}/open", "{tmp}/absent", "{tmp}/link"])
def test_an_xdg_that_is_not_is_ignored(monkeypatch, tmp_path, value):
    private(tmp_path / "open", 0o755)
    (tmp_path / "link").symlink_to(private(tmp_path / "target"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", value.format(tmp=tmp_path))
    assert default_runtime_dir() == Path(f"/tmp/inferd-{os.getuid()}")


def test_the_system_service_comes_second(monkeypatch, tmp_path):
    service = private(tmp_path / "run-inferd")
    assert default_runtime_dir() == service
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private(tmp_path / "xdg")))
    assert default_runtime_dir() == tmp_path / "xdg" / "inferd"


def test_endpoints_and_their_directory(tmp_path):
    found = Endpoints.in_dir(tmp_path)
    assert found.data == f"ipc://{tmp_path}/data.sock"
    assert found.control == f"ipc://{tmp_path}/control.sock"
    assert found.events == f"ipc://{tmp_path}/events.sock"
    assert found.runtime == tmp_path
    assert Endpoints("tcp://a:1", "tcp://a:2", "tcp://a:3").runtime is None


@pytest.mark.parametrize(("size", "fits"), [(106, True), (107, True), (108, False)])
def test_path_length(size, fits):
    """Case 6.3."""
    runtime = Path("/tmp") / ("x" * (size - len("/tmp//control.sock")))
    assert len(str(runtime / "control.sock")) == size
    if fits:
        assert Endpoints.in_dir(runtime).runtime == runtime
    else:
        with pytest.raises(ValueError, match="108 bytes exceeds 107"):
            Endpoints.in_dir(runtime)


def test_a_private_directory_is_made_or_refused(tmp_path):
    made = ensure_private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert ensure_private_dir(made) == made
    assert is_private_dir(made)
    with pytest.raises(PermissionError, match="0700"):
        ensure_private_dir(private(tmp_path / "open", 0o750))
