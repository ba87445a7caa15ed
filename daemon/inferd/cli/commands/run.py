"""`inferd run`: answer one prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from inferd.cli import complete
from inferd.cli.output import json_line, json_option, note, on_terminal, write
from inferd.cli.sampling import given, sampling_options
from inferd.cli.state import State, pass_state
from inferd.cli.structured import read_structure, structure_options

if TYPE_CHECKING:
    from inferd.cli.progress import LoadDisplay
    from inferd_client import Client
    from inferd_client.streams import Stream

MAX_STDIN = 64 << 20


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="A loaded or stored model; default: the daemon's."
)
@click.option("--system", help="Instructions before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--stats", is_flag=True, help="Print token counts and times to stderr afterwards.")
@sampling_options
@structure_options
@json_option
@pass_state
def run(
    state: State,
    prompt: tuple[str, ...],
    model: str,
    system: str | None,
    raw: bool,
    stats: bool,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Answer PROMPT and stream the answer; `-` or no PROMPT reads it from stdin.

    A daemon must be running. Ctrl-C cancels the answer.
    """
    from inferd.cli.connect import connect
    from inferd.cli.progress import LoadDisplay

    text = _prompt(prompt)
    if raw and system:
        raise click.UsageError("--system needs the chat template, so it cannot go with --raw")
    options = read_structure(given(sampling))
    with connect(state) as client, LoadDisplay(model or "model") as display:
        options = {"model": model, "on_progress": display.update, **options}
        stream = _start(client, text, system, raw, options)
        if not as_json:
            _print(stream, display)
        result = stream.result()
    if as_json:
        json_line(_as_dict(result))
    if stats:
        note(describe(result))


def describe(result: Any) -> str:
    """Return one line about counts and times of a finished answer."""
    from inferd_tui.units import NA, money, seconds

    usage, times = result.usage, result.timings
    if usage is None or times is None:
        return "no figures were reported"
    rate = f"{1 / times.tpot_s:.1f} tokens/s" if times.tpot_s else NA
    cost = result.cost
    price = f"cost {money(cost.per_million, cost.currency)} per M tokens ({cost.source})" if cost else f"cost {NA}"
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), {usage.completion_tokens} out, "
        f"TTFT {seconds(times.ttft_s)}, TPOT {seconds(times.tpot_s)}, {rate}, {price}, finish {result.finish}"
    )


def _prompt(words: tuple[str, ...]) -> str:
    if words and words != ("-",):
        return " ".join(words)
    if not words and sys.stdin.isatty():
        raise click.UsageError('a prompt is needed: inferd run "Why is the sky blue?", or pipe one in')
    text = sys.stdin.read(MAX_STDIN + 1)
    if len(text) > MAX_STDIN:
        raise click.UsageError(f"the prompt on stdin is longer than {MAX_STDIN} characters")
    return text


def _start(client: Client, text: str, system: str | None, raw: bool, options: dict[str, Any]) -> Stream:
    if raw:
        return client.generate(text, stream=True, **options)
    instructions = [{"role": "system", "content": system}] if system else []
    return client.chat([*instructions, {"role": "user", "content": text}], stream=True, **options)


def _print(stream: Stream, display: LoadDisplay) -> None:
    """Show pieces as they come; leaving early cancels at the daemon."""
    last = ""
    with stream:
        for piece in stream:
            display.close()
            write(piece.text)
            last = piece.text or last
    if on_terminal() and not last.endswith("\n"):
        click.echo()


def _as_dict(result: Any) -> dict[str, Any]:
    return {
        "id": result.id,
        "text": result.text,
        "finish": result.finish,
        "seed": result.seed,
        "ids": result.ids,
        "usage": result.usage,
        "timings": result.timings,
        "cost": result.cost,
    }
