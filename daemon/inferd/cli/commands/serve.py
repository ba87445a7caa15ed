"""`inferd serve`: run the daemon in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from inferd.cli import complete
from inferd.cli.state import State, pass_state
from inferd.config.errors import ConfigError
from inferd.config.permissions import check_config_files

if TYPE_CHECKING:
    from inferd.config.schema import Config
    from inferd.plugin.manager import PluginManager


NVIDIA = Path("/dev/nvidiactl")
"""Is there where `auto` will find a GPU; whether torch sees it too is the worker's matter."""


class Override(NamedTuple):
    """One option of `serve` that sets one key of the config."""

    option: str
    key: str
    type: Any
    help: str


OVERRIDES = (
    Override("--device", "engine.device", str, "auto, cpu, cuda, cuda:1..."),
    Override("--dtype", "engine.dtype", click.Choice(["auto", "fp32", "bf16", "fp16"]), "Compute type."),
    Override("--threads", "engine.threads", int, "CPU threads of the worker."),
    Override("--max-context", "engine.max_context", int, "Most tokens of one sequence."),
    Override("--max-sequences", "engine.max_sequences", int, "Most sequences that run at once."),
    Override("--token-budget", "engine.token_budget", int, "Most tokens of one step."),
    Override("--chunk", "engine.chunk", int, "Most prompt tokens of one sequence in a step."),
    Override("--kv-blocks", "engine.kv_blocks", int, "KV blocks of the pool."),
    Override(
        "--kv-format",
        "engine.kv_format",
        click.Choice(["auto", "fp32", "bf16", "fp16", "int8", "fp8"]),
        "How keys and values are stored.",
    ),
    Override("--batching", "engine.batching", click.Choice(["continuous", "static"]), "How requests share steps."),
    Override("--prefix-cache/--no-prefix-cache", "engine.prefix_cache", None, "Reuse the KV of equal prefixes."),
    Override("--expand-gqa/--no-expand-gqa", "engine.expand_gqa", None, "Baseline: K/V for every query head."),
    Override("--attention", "plugins.attention", str, "Pin the attention plugin."),
    Override("--kv", "plugins.kv", str, "Pin the KV manager plugin."),
    Override("--quantizer", "plugins.quantizer", str, "Pin the quantizer plugin."),
    Override("--draft", "plugins.draft", str, "Pin the draft plugin; none = off."),
    Override("--max-draft", "engine.max_draft", int, "Most draft tokens of a sequence in a step."),
    Override("--parallel", "plugins.parallel", str, "Pin the parallel strategy plugin."),
)


def _name(key: str) -> str:
    return key.replace(".", "__")


def _with_overrides(function: Callable[..., Any]) -> Callable[..., Any]:
    for item in reversed(OVERRIDES):
        flag: dict[str, Any] = {"default": None} if item.type is None else {"type": item.type}
        table, _, kind = item.key.partition(".")
        if table == "plugins":
            flag["shell_complete"] = complete.plugins_of(kind)
        function = click.option(item.option, _name(item.key), help=item.help, **flag)(function)
    return function


@click.command()
@click.argument("model", required=False, shell_complete=complete.models_or_files)
@click.option("--config", "config_path", metavar="FILE", help="A config file over the system's and the user's.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override any setting.")
@_with_overrides
@pass_state
def serve(state: State, model: str | None, config_path: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Start the daemon with MODEL and keep it in the foreground; Ctrl-C or SIGTERM drains it.

    MODEL is a name in the store, a .gguf file or a Hugging Face folder. Without one the config's
    default model is served.
    """
    given = {item.key: options[_name(item.key)] for item in OVERRIDES if options[_name(item.key)] is not None}
    state = state.override(given, config_path=config_path, settings=settings)
    from inferd.cli.progress import ServeDisplay
    from inferd.front.main import serve as run_daemon

    check_config_files(state.loaded.files)
    _check_pins(state.loaded.config)
    with ServeDisplay() as display:
        return run_daemon(state.loaded.config, model=model, paths=state.paths, on_load=display.update)


def _check_pins(config: Config) -> None:
    """Refuse plugin names that are not installed before a daemon starts with them. Raises ConfigError."""
    from inferd.plugin.errors import UnknownPluginError
    from inferd.plugin.manager import PluginManager
    from inferd.plugin.types import KINDS

    manager = PluginManager(config.plugins.disable).load()
    for kind in KINDS:
        name = getattr(config.plugins, kind)
        try:
            if name:
                manager.find(kind, name)
        except UnknownPluginError as error:
            raise ConfigError(f"plugins.{kind}: {error}") from None
    _check_kv_format(config, manager)


def _check_kv_format(config: Config, manager: PluginManager) -> None:
    """Refuse a KV format that no attention plugin keeps on the device that will be used. Raises ConfigError."""
    wanted, pin = config.engine.kv_format, config.plugins.attention
    device = config.engine.device.partition(":")[0]
    if device == "auto":
        device = "cuda" if NVIDIA.exists() else "cpu"
    known: set[str] = set()
    for spec in manager.specs("attention"):
        can = spec.capabilities
        # A plugin that records steps on other devices only is made for those; that it may run here is for tests.
        made_for = can.devices or can.capture_devices or {device}
        if spec.name == pin or (not pin and device in made_for):
            known |= can.kv_formats or {wanted}
    if wanted != "auto" and wanted not in known:
        raise ConfigError(
            f"engine.kv_format: attention plugin {pin or 'of any name'} does not keep KV as {wanted} on {device}; "
            f"use auto or one of {', '.join(sorted(known))}"
        )
