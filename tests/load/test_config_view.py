"""Typed reading: absent, null, wrong type, nested."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.load.config_view import DictConfigView
from inferd.load.errors import LoadError


def view(**values: Any) -> DictConfigView:
    return DictConfigView(values, source="hf", where="config.json", tensors={}, read_floats=lambda name: ())


def test_values_of_the_right_type() -> None:
    config = view(i=3, f=0.5, b=False, s="x", l=[1])
    assert (config.int("i"), config.float("f"), config.bool("b"), config.str("s")) == (3, 0.5, False, "x")
    assert config.raw("l") == [1]
    whole = config.float("i")
    assert (whole, type(whole)) == (3.0, float)


@pytest.mark.parametrize("method", ["int", "float", "bool", "str", "raw", "table"])
def test_absent_and_null_give_the_default_or_an_error(method: str) -> None:
    config = view(null=None)
    for key in ("null", "absent"):
        marker = object()
        assert getattr(config, method)(key, marker) is marker
        assert getattr(config, method)(key, None) is None
        with pytest.raises(LoadError, match=f"config.json: {key} is missing"):
            getattr(config, method)(key)
    assert config.keys() == []


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *(("int", value) for value in (True, 1.0, "1", [], {})),
        *(("float", value) for value in (True, "1", float("nan"), float("inf"), [])),
        *(("bool", value) for value in (0, 1, "true", [])),
        *(("str", value) for value in (1, True, ["x"])),
        *(("table", value) for value in (1, "x", [])),
    ],
)
def test_a_value_of_another_type_is_an_error_even_with_a_default(method: str, value: Any) -> None:
    with pytest.raises(LoadError, match=r"config.json: key must be "):
        getattr(view(key=value), method)("key", None)


def test_a_nested_table_names_its_place() -> None:
    table = view(rope={"factor": "8", "theta": None}).table("rope")
    assert table.keys() == ["factor"]
    with pytest.raises(LoadError, match=r"config.json: rope: factor must be a number, not '8'"):
        table.float("factor")
    with pytest.raises(LoadError, match=r"config.json: rope: theta is missing"):
        table.float("theta")
