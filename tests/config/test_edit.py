"""`config set` changes one value, keeps the rest of the file, and never leaves a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.config.edit import set_value, unset_value
from inferd.config.errors import ConfigError
from inferd.config.layers import read_file

BEFORE = """# my settings
default_model = "a"  # the small one

[engine]
chunk = 64
"""


def test_comments_and_layout_stay(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE)
    set_value(path, "engine.chunk", 128)
    assert path.read_text() == BEFORE.replace("64", "128")


def test_a_missing_file_and_table_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    set_value(path, "plugins.draft", "ngram")
    set_value(path, "plugins.disable", ["kv.contiguous"])
    assert read_file(path) == {"plugins": {"draft": "ngram", "disable": ["kv.contiguous"]}}
    assert [p.name for p in path.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(("key", "value"), [("engine.chunks", 1), ("engine.chunk", "x"), ("engine", 1)])
def test_what_the_schema_refuses_is_not_written(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE)
    with pytest.raises(ConfigError):
        set_value(path, key, value)
    assert path.read_text() == BEFORE


def test_a_broken_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("engine = [")
    with pytest.raises(ConfigError, match=str(path)):
        set_value(path, "engine.chunk", 1)
    assert path.read_text() == "engine = ["


def test_unset(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE)
    assert unset_value(path, "engine.chunk")
    assert not unset_value(path, "engine.chunk")
    assert not unset_value(path, "daemon.max_queue")
    assert "# my settings" in path.read_text()
