"""The example configuration names every setting, with the default the schema has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from inferd.config.check import check, known_keys, leaves
from inferd.config.layers import load_config, read_file
from inferd.config.schema import Config, Model

EXAMPLE = Path(__file__).parent.parent.parent / "configs" / "config.toml"


def uncommented() -> dict[str, object]:
    """Return the example with its settings switched on; prose has a space after the hash."""
    return tomllib.loads(re.sub(r"^#(?=[\w\[])", "", EXAMPLE.read_text(), flags=re.MULTILINE))


def test_the_example_changes_nothing_as_it_is() -> None:
    assert check(read_file(EXAMPLE), "example") == Config()
    assert load_config(EXAMPLE).files[-1] == EXAMPLE


def test_every_setting_is_in_the_example_with_its_default() -> None:
    values = uncommented()
    models, options = values.pop("models"), values.pop("plugin")
    assert {key for key, _ in leaves(values)} == set(known_keys())
    assert check(values, "example") == Config()
    assert isinstance(models, dict)
    assert set(models["mine"]) == set(Model.__struct_fields__)
    check({"models": models, "plugin": options}, "example")


def test_every_setting_is_explained() -> None:
    """Each run of settings follows a comment or the head of a table that says all."""
    explained, bare = False, []
    for line in EXAMPLE.read_text().splitlines():
        if line.startswith("# "):
            explained = True
        elif line.startswith("#") and not explained:
            bare.append(line)
        elif not line:
            explained = False
    assert bare == []
