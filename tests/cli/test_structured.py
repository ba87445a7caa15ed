"""What the answer must look like, asked for on the command line, of the real daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from tests.cli.tool import Tool
from tests.e2e.harness import serving
from tests.tiny import tiny_llama

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    folder = tmp_path_factory.mktemp("structured")
    with serving(tiny_llama(folder / "model")) as daemon:
        daemon.client().status()
        yield Tool(folder, daemon.runtime)


def ask(tool: Tool, *options: str) -> str:
    ran = tool("run", "--raw", "--seed", "4", "--max-tokens", "200", *options, "hello world")
    assert ran.code == 0, ran.err
    return ran.out


def test_each_option_shapes_the_answer(tool: Tool, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text('start: "<" /[a-c]/ ">"')
    answer = json.loads(ask(tool, "--json-schema", str(schema)))
    assert 0 <= answer["a"] <= 99
    assert answer["b"] in ("x", None)
    assert ask(tool, "--regex", "z{7}") == "zzzzzzz"
    assert ask(tool, "--grammar", str(grammar)) in ("<a>", "<b>", "<c>")
    assert ask(tool, "--choice", "yes", "--choice", "no") in ("yes", "no")


def test_what_cannot_be_used_is_a_matter_of_usage(tool: Tool, tmp_path: Path) -> None:
    for name, text, said in (
        ("no.json", "{", "is not JSON"),
        ("list.json", "[]", "JSON object"),
        ("not.json", '{"not": {"type": "string"}}', "not supported of JSON Schema"),
    ):
        (tmp_path / name).write_text(text)
        ran = tool("run", "--raw", "--json-schema", str(tmp_path / name), "x")
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert said in ran.err
    ran = tool("run", "--raw", "--regex", "(?=a)", "x")
    assert (ran.code, ran.err.count("\n")) == (Exit.USAGE, 1)
    assert "look-around" in ran.err
