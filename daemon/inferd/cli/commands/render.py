"""`inferd render` and `inferd tokenize`: dry runs of the text side of a request."""

from __future__ import annotations

import sys

import click

from inferd.cli import complete
from inferd.cli.output import json_line, json_option, lines
from inferd.cli.state import State, pass_state


@click.command()
@click.argument("text")
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="Whose template; default: the daemon's model."
)
@click.option("--system", help="Instructions before the text.")
@click.option("--messages", is_flag=True, help="TEXT is JSON: a list of messages.")
@json_option
@pass_state
def render(state: State, text: str, model: str, system: str | None, messages: bool, as_json: bool) -> None:
    """Print what a chat with TEXT becomes through the model's template; nothing is generated."""
    from inferd.cli.connect import connect

    with connect(state) as client:
        found = client.render(_messages(text, system, messages), model=model)
    if as_json:
        json_line({"text": found.text, "ids": found.ids})
    else:
        lines([found.text])


@click.command()
@click.argument("text")
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="Whose tokenizer; default: the daemon's model."
)
@click.option(
    "--bos/--no-bos", default=True, show_default=True, help="Put the first token before it, if the model has one."
)
@click.option("--special", is_flag=True, help="Text that spells a special token becomes that token.")
@json_option
@pass_state
def tokenize(state: State, text: str, model: str, bos: bool, special: bool, as_json: bool) -> None:
    """Print the token ids of TEXT; `-` reads it from stdin."""
    from inferd.cli.connect import connect

    given = sys.stdin.read() if text == "-" else text
    with connect(state) as client:
        ids = client.tokenize(given, model=model, add_bos=bos, special_tokens=special)
    if as_json:
        json_line(ids)
    else:
        lines([" ".join(map(str, ids))])


def _messages(text: str, system: str | None, is_json: bool) -> list[dict[str, object]]:
    import json

    if is_json:
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            raise click.UsageError(f"--messages: not valid JSON: {error}") from None
        if not isinstance(parsed, list):
            raise click.UsageError("--messages: a JSON list of messages is needed")
        return parsed
    instructions: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*instructions, {"role": "user", "content": text}]
