"""The root command: global options and the table of subcommands."""

from __future__ import annotations

import os

import click

from inferd.cli.exits import HELP
from inferd.cli.lazy import Lazy, LazyGroup
from inferd.cli.state import State

_HERE = "inferd.cli.commands"

COMMANDS = {
    "serve": Lazy(f"{_HERE}.serve:serve", "Start the daemon and keep it in the foreground."),
    "run": Lazy(f"{_HERE}.run:run", "Answer one prompt."),
    "chat": Lazy(f"{_HERE}.chat:chat", "Talk to a model."),
    "ps": Lazy(f"{_HERE}.ps:ps", "List loaded models."),
    "ls": Lazy(f"{_HERE}.ls:ls", "List models in the store."),
    "show": Lazy(f"{_HERE}.show:show", "Describe a model from its header."),
    "pull": Lazy(f"{_HERE}.pull:pull_", "Get a model into the store."),
    "rm": Lazy(f"{_HERE}.rm:rm", "Remove a model from the store."),
    "load": Lazy(f"{_HERE}.load:load", "Load a model now."),
    "unload": Lazy(f"{_HERE}.load:unload", "End a model's worker and free its memory."),
    "status": Lazy(f"{_HERE}.status:status", "Show what the daemon is doing."),
    "metrics": Lazy(f"{_HERE}.metrics:metrics", "Print all metrics for Prometheus."),
    "top": Lazy(f"{_HERE}.top:top", "Watch the daemon live."),
    "gateway": Lazy(f"{_HERE}.gateway:gateway", "Serve an OpenAI-compatible HTTP API."),
    "stop": Lazy(f"{_HERE}.stop:stop", "Drain the daemon and wait for its end."),
    "cancel": Lazy(f"{_HERE}.cancel:cancel", "Cancel a request."),
    "render": Lazy(f"{_HERE}.render:render", "Show what a chat becomes through the template."),
    "tokenize": Lazy(f"{_HERE}.render:tokenize", "Show the token ids of a text."),
    "bench": Lazy(f"{_HERE}.bench:bench", "Measure what this machine does."),
    "tune": Lazy(f"{_HERE}.tune:tune", "Fit the GPU kernels to this machine."),
    "traffic": Lazy(f"{_HERE}.traffic:traffic", "Show how long requests are and when they come."),
    "plugins": Lazy(f"{_HERE}.plugins:plugins", "List, check, enable and disable plugins."),
    "service": Lazy(f"{_HERE}.service:service", "Run the daemon under systemd."),
    "doctor": Lazy(f"{_HERE}.doctor:doctor", "Check the installation and say what mends it."),
    "keys": Lazy(f"{_HERE}.keys:keys", "Manage who may use the daemon over tcp."),
    "config": Lazy(f"{_HERE}.config:config", "Show and change settings."),
    "version": Lazy(f"{_HERE}.version:version", "Print versions."),
    "completion": Lazy(f"{_HERE}.completion:completion", "Print a completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--config", "config_path", metavar="FILE", help="A config file over the system's and the user's.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override one setting, e.g. log.level=debug."
)
@click.option("--runtime", metavar="DIR", help="Folder of the daemon's sockets.")
@click.option("--key", "key_file", metavar="FILE", help="Talk to a daemon on tcp with this key; see `inferd keys`.")
@click.pass_context
def root(
    ctx: click.Context, config_path: str | None, settings: tuple[str, ...], runtime: str | None, key_file: str | None
) -> None:
    """inferd runs language models for local programs and serves them over ZeroMQ.

    First steps: `inferd pull smollm2-135m`, `inferd serve`, then `inferd run "Why is the sky blue?"`.
    """
    ctx.color = False if os.environ.get("NO_COLOR") else None
    ctx.obj = State(config_path, settings, runtime, key_file)
