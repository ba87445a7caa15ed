"""The demonstration behind `make demo`: a daemon of our own, one question, the figures."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from inferd.cli.commands.pull import fetch
from inferd.cli.errors import CliError
from inferd.cli.main import guarded
from inferd.cli.output import note, write
from inferd.cli.state import State
from inferd_client import Client
from inferd_client.options import Timeouts
from inferd_client.results import Completion
from inferd_tui.units import NA, seconds

MODEL = "smollm2-135m"
START_S = 180.0
MAX_TOKENS = 160


def demo(prompt: str) -> None:
    """Answer `prompt` with the default model and print TTFT, TPOT and tokens/s."""
    fetch(MODEL, State(None, (), None).store)
    with tempfile.TemporaryDirectory(prefix="inferd-demo-") as folder:
        runtime, log = Path(folder) / "run", Path(folder) / "log"
        with log.open("wb") as sink:
            command = [sys.executable, "-m", "inferd.cli.main", "--runtime", str(runtime), "serve", MODEL]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        try:
            _ask(daemon, runtime, log, prompt)
        finally:
            _end(daemon)
    if daemon.returncode != 0:
        raise CliError(f"the daemon ended with code {daemon.returncode}")


def _ask(daemon: subprocess.Popen[bytes], runtime: Path, log: Path, prompt: str) -> None:
    begin = time.monotonic()
    _await_socket(daemon, runtime, log)
    with Client(runtime, timeouts=Timeouts(connect=START_S)) as client:
        client.load(MODEL)
        note(f"{MODEL} was ready after {seconds(time.monotonic() - begin)}")
        click.echo(f"> {prompt}\n")
        # A prompt that the model has seen makes the figures those of a daemon in use, not of its first step.
        client.chat("Hi.", max_tokens=2, temperature=0)
        with client.chat(prompt, stream=True, max_tokens=MAX_TOKENS, temperature=0, repetition_penalty=1.1) as stream:
            for piece in stream:
                write(piece.text)
            result = stream.result()
        click.echo("\n")
        click.echo(_figures(result))
        client.drain(5.0)


def _await_socket(daemon: subprocess.Popen[bytes], runtime: Path, log: Path) -> None:
    """Wait until the daemon listens. Raises CliError with its last line when it ends instead."""
    limit = time.monotonic() + START_S
    while not (runtime / "control.sock").exists():
        if daemon.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise CliError(f"the daemon ended at its start: {''.join(last)}")
        if time.monotonic() > limit:
            raise CliError(f"the daemon did not start within {START_S:g} s")
        time.sleep(0.05)


def _figures(result: Completion) -> str:
    usage, times = result.usage, result.timings
    if usage is None or times is None:
        return "no figures were reported"
    rate = f"{1 / times.tpot_s:.1f}" if times.tpot_s else NA
    return (
        f"TTFT {seconds(times.ttft_s)} ({usage.prompt_tokens} prompt tokens), TPOT {seconds(times.tpot_s)}, "
        f"{rate} tokens/s ({usage.completion_tokens} tokens, finish {result.finish})"
    )


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Wait for the drained daemon; one that does not end is ended."""
    try:
        daemon.wait(15)
    except subprocess.TimeoutExpired:
        daemon.terminate()
        try:
            daemon.wait(15)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


if __name__ == "__main__":
    sys.exit(guarded(lambda: demo(" ".join(sys.argv[1:]) or "Why is the sky blue?")))
