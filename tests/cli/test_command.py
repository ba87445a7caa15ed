"""The command itself: help, exit codes, one-line errors, JSON, pipes, completion. No daemon runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import click
import pytest

from inferd.cli.exits import HELP, Exit
from inferd.cli.root import COMMANDS, root
from tests.cli.tool import COMMAND, Tool

NEEDS_DAEMON = (
    ("ps",),
    ("status",),
    ("stop",),
    ("run", "hello"),
    ("chat",),
    ("load", "x"),
    ("unload", "x"),
    ("cancel", "x"),
    ("render", "x"),
    ("tokenize", "x"),
    ("top", "--once"),
    ("metrics",),
)


@pytest.mark.parametrize("arguments", NEEDS_DAEMON, ids=lambda a: a[0])
def test_without_a_daemon_the_remedy_is_one_line(tool: Tool, arguments: tuple[str, ...]) -> None:
    ran = tool(*arguments)
    assert ran.code == Exit.NOT_RUNNING
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert "inferd serve" in ran.err
    assert str(tool.runtime) in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("statsu",), Exit.USAGE, "did you mean `status`"),
        (("ps", "--nope"), Exit.USAGE, "inferd ps --help"),
        (("show", "no-such-model"), Exit.NO_MODEL, "no model named 'no-such-model'"),
        (("show", "smollm2-135m"), Exit.NO_MODEL, "inferd pull smollm2-135m"),
        (("serve",), Exit.NO_MODEL, "inferd pull smollm2-135m"),
        (("serve", "/no/such.gguf"), Exit.NO_MODEL, "/no/such.gguf"),
        (("serve", "--dtype", "fp64"), Exit.USAGE, "'fp64' is not one of"),
        (("serve", "--max-context", "-1"), Exit.CONFIG, "engine.max_context"),
        (("serve", "--set", "engine.chunks=1"), Exit.CONFIG, "did you mean `engine.chunk`"),
        (("--set", "nonsense", "ps"), Exit.CONFIG, "KEY=VALUE"),
        (("--config", "/no/such.toml", "ps"), Exit.CONFIG, "/no/such.toml: No such file"),
        (("--runtime", "/tmp/" + "x" * 120, "ps"), Exit.CONFIG, "at most|exceeds 107"),
        (("rm", "nope"), Exit.NO_MODEL, "no model named 'nope'"),
        (("pull", "nosuch"), Exit.NO_MODEL, "neither a known model"),
        (("pull", "file:/no/such.gguf"), Exit.NO_MODEL, "/no/such.gguf"),
        (("pull", "pypi:nosuch"), Exit.FAILURE, "a version is needed"),
        (("plugins", "check", "pagd"), Exit.FAILURE, "paged"),
        (("plugins", "enable", "kv.paged"), Exit.FAILURE, "is not disabled"),
        (("config", "get", "engine.chunkk"), Exit.CONFIG, "did you mean `engine.chunk`"),
        (("config", "set", "engine.chunkk=1"), Exit.CONFIG, "did you mean `engine.chunk`"),
        (("config", "unset", "engine.chunk"), Exit.FAILURE, "does not set"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    tool: Tool, arguments: tuple[str, ...], code: Exit, text: str
) -> None:
    ran = tool(*arguments)
    assert (ran.code, ran.err.count("\n")) == (code, 1), ran.err
    assert any(part in ran.err for part in text.split("|")), ran.err
    assert "Traceback" not in ran.err


def test_a_bad_user_file_is_named(tool: Tool) -> None:
    tool.user_file.parent.mkdir(parents=True)
    tool.user_file.write_text("[engine]\nchunks = 1\n")
    ran = tool("ps")
    assert ran.code == Exit.CONFIG
    assert f"{tool.user_file}: unknown key `engine.chunks`" in ran.err


def test_debug_shows_the_traceback(tool: Tool) -> None:
    ran = tool("show", "nope", env={"INFERD_LOG": "debug"})
    assert "Traceback" in ran.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_list_agrees_with_it(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert command.help
    assert COMMANDS[name].help.endswith(".")


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


def test_every_option_is_explained() -> None:
    bare = [
        f"{name} {parameter.name}"
        for name, command in [("inferd", root), *all_commands(root)]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert bare == []
    assert len(list(all_commands(root))) > len(COMMANDS)


def test_help_lists_all_commands_and_exit_codes(tool: Tool) -> None:
    ran = tool("--help")
    assert ran.code == Exit.OK
    assert all(f"  {name} " in ran.out for name in COMMANDS)
    flat = " ".join(ran.out.split())
    assert HELP in flat
    assert all(str(int(code)) in HELP for code in Exit)


READS = {"ps", "ls", "show", "status", "top", "version", "render", "tokenize", "run"}


@pytest.mark.parametrize("name", sorted(READS))
def test_what_reads_has_json(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_json_of_what_needs_no_daemon(tool: Tool) -> None:
    assert tool("ls", "--json").json == []
    assert tool("version", "--json").json["protocol"] == "1.0"
    plugins = tool("plugins", "list", "--json").json
    assert {(p["kind"], p["name"]) for p in plugins} >= {("attention", "torch"), ("kv", "paged"), ("draft", "ngram")}
    assert set(tool("config", "path", "--json").json) == {"files", "user_file", "runtime", "models", "cache", "state"}


def test_config_set_get_show_unset(tool: Tool) -> None:
    assert tool("config", "set", "engine.chunk=64").code == 0
    assert tool("config", "get", "engine.chunk").out == "64\n"
    shown = tool("config", "show", "--origin", "--json").json
    assert shown["engine.chunk"] == {"value": 64, "origin": str(tool.user_file)}
    assert shown["engine.block_size"] == {"value": 16, "origin": "default"}
    over = tool("--set", "engine.chunk=32", "config", "show", "--origin").out
    assert any(line.split() == ["engine.chunk", "32", "command", "line"] for line in over.splitlines())
    assert tool("config", "unset", "engine.chunk").code == 0
    assert tool("config", "get", "engine", "--json").json["engine.chunk"] == 0


def test_plugins_are_disabled_and_enabled_through_the_config(tool: Tool) -> None:
    assert tool("plugins", "disable", "kv.contiguous").code == 0
    states = {p["name"]: p["state"] for p in tool("plugins", "list", "--json").json if p["kind"] == "kv"}
    assert states["contiguous"] == "disabled"
    assert tool("plugins", "enable", "kv.contiguous").code == 0
    assert tool("config", "get", "plugins.disable", "--json").json == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(tool: Tool, shell: str) -> None:
    ran = tool("completion", shell)
    assert ran.code == 0
    assert "_INFERD_COMPLETE" in ran.out


def test_completion_knows_the_commands(tool: Tool) -> None:
    words = {"_INFERD_COMPLETE": "bash_complete", "COMP_WORDS": "inferd st", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env=tool.env | words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["plain,status", "plain,stop"]


def test_a_reader_that_leaves_gives_no_traceback(tool: Tool) -> None:
    shell = f"{' '.join(COMMAND)} config show | true"
    done = subprocess.run(["bash", "-c", shell], env=tool.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""


def test_nothing_is_coloured_off_a_terminal(tool: Tool) -> None:
    for arguments in (["--help"], ["config", "show", "--origin"], ["plugins", "list"]):
        assert "\x1b" not in tool(*arguments).out


def test_control_characters_in_names_and_errors_are_made_visible(tool: Tool) -> None:
    ran = tool("show", "evil\x1b[31mname")
    assert "\x1b" not in ran.err + ran.out
    assert "␛" in ran.err or "\\x1b" in ran.err


def test_the_json_of_an_empty_prompt_is_no_request(tool: Tool) -> None:
    assert tool("run", "--raw", "--system", "x", "y").code == Exit.USAGE


def test_version_is_the_packages_own(tool: Tool) -> None:
    from importlib.metadata import version

    assert json.loads(tool("version", "--json").out)["inferd"] == version("inferd")
