"""`inferd bench serve`: put load on a running daemon and print what its clients see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.output import json_option, lines, note, to_json
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.bench.serve.profiles import Profile
    from inferd.bench.serve.run import Load, Report

PROFILES = ("SISO", "SILO", "LISO", "LILO", "recorded")


@click.command()
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="A loaded or stored model; default: the daemon's."
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES, case_sensitive=False),
    default=None,
    help="Short or long input, short or long output (128 or 1024 tokens), or lengths as the traffic record has them."
    "  [default: SISO]",
)
@click.option(
    "--input-len",
    metavar="LENGTH",
    help="In place of the profile's input: N, uniform:LOW:HIGH, "
    "normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA tokens.",
)
@click.option("--output-len", metavar="LENGTH", help="The same for the output.")
@click.option(
    "--shared", type=click.IntRange(0), default=0, help="Tokens at the head of the input that all requests share."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    help="Open loop: Poisson arrivals a second. Repeat it for a sweep.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    multiple=True,
    help="Closed loop: requests in flight. Repeat it for a sweep.  [default: 1]",
)
@click.option("--requests", type=click.IntRange(1), default=None, help="Requests of a run.  [default: 50]")
@click.option(
    "--duration", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Send for this long instead."
)
@click.option("--warmup", type=click.IntRange(0), default=4, show_default=True, help="Requests before, not measured.")
@click.option(
    "--clients", type=click.IntRange(1, 64), default=1, show_default=True, help="Client sessions to spread over."
)
@click.option(
    "--slo-ttft",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="Bound of TTFT for goodput; default: slo.ttft_ms.",
)
@click.option(
    "--slo-tpot",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="Bound of TPOT for goodput; default: slo.tpot_ms.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed sends the same requests.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw a PNG.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write figures and every request as JSON.",
)
@json_option
@pass_state
def serve(state: State, **options: Any) -> None:
    """Put load on a running daemon and print TTFT, TPOT, ITL, throughput and goodput with 95 % intervals.

    Latencies count from when a request was due, not from when it could be sent. Outputs run to their
    length, so that every run does the same work. The traffic record leaves these requests out.
    """
    import asyncio
    from functools import partial

    from inferd.bench.serve.run import benchmark
    from inferd.cli.connect import where
    from inferd.cli.progress import PhaseBar
    from inferd_client import AsyncClient

    if options["plot"] is not None:
        _need_matplotlib()
    settings, place = _settings(state, options), where(state)
    with PhaseBar("bench", unit="count") as bar:
        try:
            report = asyncio.run(benchmark(partial(AsyncClient, **place), settings, bar.update))
        except ValueError as error:
            raise CliError(str(error)) from None
    _show(report, as_json=options["as_json"])
    if options["output"] is not None:
        options["output"].write_text(to_json(_document(report, whole=True)) + "\n")
        note(f"figures and requests are in {options['output']}")
    if options["plot"] is not None:
        from inferd.bench.serve import plot

        plot.save(options["plot"], _title(report), report.runs)
        note(f"the plot is in {options['plot']}")


def _settings(state: State, options: dict[str, Any]) -> Any:
    from inferd.bench.serve.run import Settings
    from inferd.bench.serve.summary import Bounds

    if options["requests"] and options["duration"]:
        raise click.UsageError("--requests and --duration exclude each other")
    slo = state.loaded.config.slo
    ttft, tpot = (
        ms / 1000 if ms else None for ms in (options["slo_ttft"] or slo.ttft_ms, options["slo_tpot"] or slo.tpot_ms)
    )
    profile, recorded_rate = _profile(state, options)
    return Settings(
        profile=profile,
        loads=_loads(options, recorded_rate),
        model=options["model"],
        requests=options["requests"] or 50,
        duration=options["duration"],
        warmup=options["warmup"],
        clients=options["clients"],
        bounds=Bounds(ttft, tpot),
        seed=options["seed"],
    )


def _loads(options: dict[str, Any], recorded_rate: float | None) -> list[Load]:
    from inferd.bench.serve.run import Load

    rates, concurrencies = options["rate"], options["concurrency"]
    if rates and concurrencies:
        raise click.UsageError("--rate and --concurrency exclude each other")
    if not rates and not concurrencies and recorded_rate:
        return [Load(rate=recorded_rate)]
    return [Load(rate=rate) for rate in rates] or [Load(concurrency=n) for n in concurrencies or (1,)]


def _profile(state: State, options: dict[str, Any]) -> tuple[Profile, float | None]:
    """Return where lengths come from and, of recorded ones, the rate they came at."""
    from dataclasses import replace

    from inferd.bench.serve.profiles import named, parse

    given = {side: options[f"{side}_len"] for side in ("input", "output") if options[f"{side}_len"]}
    if options["profile"] == "recorded":
        if given or options["shared"]:
            raise click.UsageError("--profile recorded has its own lengths")
        return _recorded(state, options["model"])
    try:
        lengths = {side: parse(text) for side, text in given.items()}
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    profile = named(options["profile"] or "SISO", shared=options["shared"])
    if lengths:
        profile = replace(profile, name=f"{profile.name}, changed" if options["profile"] else "given", **lengths)
    return profile, None


def _recorded(state: State, model: str) -> tuple[Profile, float | None]:
    from inferd.bench.serve.profiles import recorded
    from inferd.cli.connect import connect
    from inferd.traffic.figures import rate

    with connect(state) as client:
        wanted = model or client.status().default_model
        found = client.traffic(wanted).models
    if not found or not found[0].recent:
        raise CliError(f"the traffic record has no requests for {wanted}; see: inferd traffic show")
    return recorded(found[0]), rate(found[0])


def _show(report: Report, *, as_json: bool) -> None:
    from inferd.bench.serve.report import render, render_sweep

    if as_json:
        click.echo(to_json(_document(report, whole=False)))
        return
    lines([_title(report), report.lengths])
    if report.clipped:
        note(f"{report.clipped} requests were cut to the context of {report.environment.context} tokens")
    for run in report.runs:
        lines(["", *render(run.summary, run.spent)])
    if len(report.runs) > 1:
        lines(["", *render_sweep([run.summary for run in report.runs])])


def _document(report: Report, *, whole: bool) -> dict[str, Any]:
    from inferd.bench.serve.report import request_row

    runs = [
        {"summary": summary, "spent": spent} | ({"requests": [request_row(o) for o in outcomes]} if whole else {})
        for summary, spent, outcomes in report.runs
    ]
    return {"environment": report.environment, "lengths": report.lengths, "clipped": report.clipped, "runs": runs}


def _title(report: Report) -> str:
    found = report.environment
    return f"{found.model} on {found.device or 'n/a'} ({found.machine}, {found.cpus} CPUs), inferd {found.inferd}"


def _need_matplotlib() -> None:
    """Say that the extra is missing before anything is measured."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise CliError("--plot needs matplotlib: pip install 'inferd[plot]'")
