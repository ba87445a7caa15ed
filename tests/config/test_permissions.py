"""Files that somebody else could change or read are refused, with the command that mends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferd.config.errors import ConfigError
from inferd.config.permissions import check_config_files, check_secret

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.touch(mode=0o644)
    return path


def test_ordinary_files_pass(file: Path) -> None:
    for mode in (0o600, 0o644, 0o664):
        file.chmod(mode)
        check_config_files([file])
    file.chmod(0o600)
    check_secret(file)


def test_a_config_that_everybody_can_change(file: Path) -> None:
    file.chmod(0o646)
    with pytest.raises(ConfigError, match=f"mode 646.*chmod o-w {file}"):
        check_config_files([file])


def test_a_config_in_a_folder_where_everybody_can_replace_it(file: Path) -> None:
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"chmod o-w {file.parent}"):
        check_config_files([file])
    file.parent.chmod(0o1777)  # sticky, as /tmp: only the owner can replace it
    check_config_files([file])


@needs_root
def test_a_config_of_somebody_else(file: Path) -> None:
    os.chown(file, 12345, 12345)
    with pytest.raises(ConfigError, match=f"belongs to user 12345.*chown 0 {file}"):
        check_config_files([file])
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=f"belongs to user 12345.*chown 0 {file}"):
        check_secret(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_reach(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:o}.*chmod 600 {file}"):
        check_secret(file)


def test_a_secret_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a plain file"):
        check_secret(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        check_secret(tmp_path / "absent")
