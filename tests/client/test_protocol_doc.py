"""clients/PROTOCOL.md says what the code does: every struct, field, code, state and limit, and nothing stale."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest

import inferd_client as ic
from inferd_client import endpoints, link, sockets
from inferd_client import protocol as p

from .wire_types import rows, structs

TEXT = (Path(__file__).parents[2] / "clients" / "PROTOCOL.md").read_text()


def table_after(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a line, without its header."""
    body = TEXT.split(f"\n{heading}\n", 1)[1]
    lines = body[body.index("\n|") + 1 :].split("\n")
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table[2:]]


def headings() -> dict[str, str]:
    """Struct name to the tag its heading shows."""
    return {name: tag or "" for name, tag in re.findall(r"^#### (\w+)(?: `(\w+)`)?$", TEXT, re.MULTILINE)}


def test_every_struct_has_a_section_and_every_section_a_struct():
    assert headings() == {name: kind.__struct_config__.tag or "" for name, kind in structs().items()}


@pytest.mark.parametrize("name", structs())
def test_fields_types_and_defaults(name):
    tag = structs()[name].__struct_config__.tag
    table = table_after(f"#### {name} `{tag}`" if tag else f"#### {name}")
    assert [tuple(row[:3]) for row in table] == rows(structs()[name])
    assert all(len(row) == 4 and row[3] not in ("", "?") for row in table)


def test_error_codes():
    table = table_after("## Error codes")
    assert [row[0] for row in table] == [str(code) for code in p.Code]
    assert all(row[1] and row[2] for row in table)
    assert set(ic.errors.ERRORS) == set(p.Code)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Requests, in `progress` and `status`:", p.Progress.__annotations__["state"]),
        ("Models, in `status`, `models` and events:", p.ModelStatus.__annotations__["state"]),
        ("The daemon, in `status`:", p.StatusReply.__annotations__["state"]),
        ("Reasons for the end of a choice:", p.FinishReason),
    ],
)
def test_states(line, kind):
    if isinstance(kind, str):
        kind = eval(kind, {"Literal": typing.Literal})
    assert [row[0] for row in table_after(line)] == list(typing.get_args(kind))


def test_limits():
    stated = {row[0]: [int(n) for n in re.findall(r"\d+", row[1])] for row in table_after("## Limits")}
    caps = p.Caps
    assert stated == {
        "message": [p.MAX_FRAME],
        "id": [caps.ID_CHARS],
        "model": [caps.MODEL_CHARS],
        "messages": [caps.MESSAGES],
        "tools, tool_calls": [caps.TOOLS, caps.TOOL_DEPTH],
        "template_args": [caps.TEMPLATE_ARGS],
        "role, name, tool_call_id, names of template_args": [caps.NAME_CHARS],
        "n": [caps.N],
        "logprobs, prompt_logprobs": [caps.LOGPROBS],
        "stop": [caps.STOP, caps.STOP_CHARS],
        "stop_token_ids": [caps.STOP_TOKEN_IDS],
        "logit_bias": [caps.LOGIT_BIAS],
        "bad_words": [caps.BAD_WORDS],
        "allowed_token_ids": [caps.ALLOWED_TOKEN_IDS],
        "choice": [caps.CHOICES],
        "json_schema, regex, grammar, choice": [caps.GRAMMAR_BYTES],
        "json_schema": [caps.GRAMMAR_DEPTH],
    }


def test_sockets_and_reconnect_times():
    files = [row[0] for row in table_after("## Sockets")]
    names = (endpoints.DATA_SOCKET, endpoints.CONTROL_SOCKET, endpoints.EVENTS_SOCKET, endpoints.LOCK_FILE)
    assert files == list(names)
    flat = " ".join(TEXT.split())
    assert f"{sockets.FIRST_RECONNECT_MS} ms at first" in flat
    assert f"up to {sockets.LAST_RECONNECT_MS / 1000:g} s" in flat
    assert f"{link.HELLO_WAIT:g} s, doubling up to {link.MAX_HELLO_WAIT:g} s" in flat
    assert f"at most {endpoints.MAX_SOCKET_PATH} bytes" in flat
    assert "five heartbeats" in flat
    assert link.BEATS == 5


def test_client_methods_and_options_are_named():
    section = TEXT.split("## The Python client", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"`(\w+)`", section))
    methods = {name for name in dir(ic.Client) if not name.startswith("_")}
    methods -= {"daemon", "new_call"}
    assert methods <= named
    own = {"tools", "template_args"} | set(p.SamplingParams.__struct_fields__)
    assert set(ic.ChatOptions.__annotations__) - own <= named


def test_options_match_the_sampling_parameters():
    """RequestOptions repeats the fields of SamplingParams for type checkers; none may be missing."""
    assert set(p.SamplingParams.__struct_fields__) <= set(ic.RequestOptions.__annotations__)
