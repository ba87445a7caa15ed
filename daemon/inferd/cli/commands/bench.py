"""`inferd bench`: the group of the benchmarks, each imported only when it is called."""

from __future__ import annotations

import click

from inferd.cli.lazy import Lazy, LazyGroup

_HERE = "inferd.cli.commands"

BENCHMARKS = {
    "offline": Lazy(f"{_HERE}.bench_offline:offline", "Each phase of a model on this machine, without a daemon."),
    "serve": Lazy(f"{_HERE}.bench_serve:serve", "Load on a running daemon: TTFT, TPOT, ITL, throughput, goodput."),
}


@click.group(cls=LazyGroup, lazy=BENCHMARKS, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure what this machine does, for your lengths and loads. Alone it is `inferd bench offline`."""
    if ctx.invoked_subcommand is None:
        command = bench.get_command(ctx, "offline")
        assert command is not None
        ctx.invoke(command)
