"""`inferd completion`: tab completion for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    bash: eval "$(inferd completion bash)"; zsh the same; fish: inferd completion fish | source.
    """
    from inferd.cli.root import root

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(root, {}, "inferd", "_INFERD_COMPLETE").source())
