"""Tab completion in the real shells: commands, models, plugins, settings, files."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tool import Tool
from tests.tiny import tiny_llama

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two models, one of them known by the config alone, and `inferd` on the path."""
    home = tmp_path_factory.mktemp("home")
    tool = Tool(home, home / "run")
    stored = tool("pull", f"file:{tiny_llama(home / 'tiny')}", "--name", "alpha-model")
    assert stored.code == 0, stored.err
    tool.user_file.parent.mkdir(parents=True, exist_ok=True)
    tool.user_file.write_text('[models.beta-model]\npath = "/models/beta.gguf"\n')
    (home / "bin").mkdir()
    command = home / "bin" / "inferd"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m inferd.cli.main "$@"\n')
    command.chmod(0o755)
    (home / "some-file.gguf").touch()
    return home


def environment(home: Path) -> dict[str, str]:
    env = Tool(home, home / "run").env
    return env | {"PATH": f"{home / 'bin'}:{env['PATH']}", "TERM": "dumb", "PS1": "$ ", "HISTFILE": "/dev/null"}


class Shell:
    """An interactive shell at a terminal."""

    def __init__(self, home: Path, *command: str) -> None:
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.chdir(home)
            os.execvpe(command[0], list(command), environment(home))
        self.seen = ""

    def until(self, pattern: str, again: str = "") -> str:
        """Read until the pattern shows, and return what came up to its end; now and then press a key again.

        Shells drop what they were to list when a key is pressed meanwhile, as it is where they are slow.
        """
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.terminal], [], [], 5.0)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
            else:
                self.type(again)
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def run(self, line: str, mark: str) -> None:
        """Run a line and wait until it is done; the mark is split so that its echo does not count."""
        self.type(f"{line}; echo {mark[:2]}''{mark[2:]}\n")
        self.until(mark)

    def erase(self) -> None:
        """Erase the line, by the key that bash and zsh share."""
        self.type("\x15")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(inferd completion bash)"'),
    "zsh": (("zsh", "-f", "-i"), 'autoload -Uz compinit && compinit -u -D; eval "$(inferd completion zsh)"'),
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Shell]:
    command, setup = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    made = Shell(home, *command)
    try:
        made.run(setup, "set-up-done")
        yield made
    finally:
        made.close()


def test_a_tab_completes_what_is_unique_and_lists_what_is_not(shell: Shell) -> None:
    shell.type("inferd stat\t")
    shell.until("inferd status")
    shell.erase()
    shell.type("inferd show alp\t")
    shell.until("alpha-model")
    shell.erase()
    shell.type("inferd serve --kv con\t")
    shell.until("contiguous")
    shell.erase()
    shell.type("inferd load \t\t")
    listed = shell.until("beta-model", again="\t")
    assert "alpha-model" in listed
    shell.erase()
    shell.type("inferd serve ./some\t")
    shell.until(r"\./some-file\.gguf")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(home: Path) -> None:
    def offered(line: str) -> list[str]:
        code = f"inferd completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code],
            cwd=home,
            env=environment(home),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    assert offered("inferd stat") == ["status"]
    assert {"alpha-model", "beta-model"} <= set(offered("inferd render --model "))
    assert offered("inferd plugins check kv.con") == ["kv.contiguous"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("inferd config get engine.max_s", {"engine.max_sequences"}),
        ("inferd keys revoke ", set()),
        ("inferd pull smol", {"smollm2-135m"}),
        ("inferd --config /no/such/file show ", set()),
        ("inferd --set models.gamma.path=/x render --model g", {"gamma"}),
        ("inferd serve --attention to", {"torch"}),
    ],
)
def test_what_is_offered(home: Path, words: str, offered: set[str]) -> None:
    """Through click's protocol, which all shells speak; an unreadable config offers nothing and says nothing."""
    count = len(words.split(" ")) - 1
    env = environment(home) | {"_INFERD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(["inferd"], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert {line.split(",", 1)[1] for line in done.stdout.split()} == offered
    assert done.stderr == ""
