"""`inferd bench`: the group of the benchmarks, each imported only when it is called."""

from __future__ import annotations

import click

from inferd.cli.lazy import Lazy, LazyGroup

_HERE = "inferd.cli.commands"

BENCHMARKS = {
    "serve": Lazy(f"{_HERE}.bench_serve:serve", "Load on a running daemon: TTFT, TPOT, ITL, throughput, goodput."),
}


@click.group(cls=LazyGroup, lazy=BENCHMARKS)
def bench() -> None:
    """Measure what this machine does, for your lengths and loads."""
