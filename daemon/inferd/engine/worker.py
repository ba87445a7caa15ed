"""An engine worker: `python -m inferd.engine.worker LINK THREADS`. One model, one process.

It imports what every model needs, then waits for `Begin`: the front keeps a spare one where it pays.
"""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()  # before anything that takes time

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from inferd.channel import Channel
from inferd.devices import own_bytes
from inferd.engine.settings import WorkerSettings
from inferd.link import (
    Abort,
    Begin,
    Dying,
    Idle,
    LoadFailed,
    LoadProgress,
    Ready,
    StepReport,
    Stop,
    Submit,
    Warm,
    engine_in,
)
from inferd.load.errors import LoadError
from inferd.plugin.errors import PluginError
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from inferd.link import Ceilings, DeviceUse, EngineIn, ModelCard

IDLE_S = 1.0
USE_S = 1.0
"""Between two reports on the device."""
PROGRESS_S = 0.2
"""Between two reports of the same phase of a load."""
ONEDNN_PRIMITIVES = "256"
"""oneDNN keeps a compiled product for every matrix shape and number of rows; each takes about half a MiB."""
EX_LOAD = 3
"""Exit code after a load that failed."""
FORESEEN = (LoadError, ValueError, OSError, MemoryError, ImportError)
"""Errors of a load whose text says enough."""

Progress = Callable[[str, int, int], None]
Build = Callable[[WorkerSettings, Progress], tuple["ServedEngine", "ModelCard"]]


class ServedEngine(Protocol):
    """What a worker drives: the engine of a model, or a scripted one."""

    @property
    def has_work(self) -> bool: ...
    def submit(self, submit: Submit) -> None: ...
    def abort(self, key: str, choice: int | None = None) -> None: ...
    def step(self) -> StepReport: ...
    def idle(self) -> Ceilings | None: ...
    def use(self) -> DeviceUse: ...
    def watch(self, file: int) -> None: ...


def main(arguments: list[str], build: Build, warm: Callable[[], None] = lambda: None) -> int:
    """Load, say so, serve until told to stop; the exit code. What `step` raises ends it, and the front is told."""
    link, threads = arguments
    gc.disable()  # what is imported and loaded lives as long as the process
    channel = Channel(link, bind=True, decoder=engine_in)
    limit_threads(int(threads))
    warm()
    channel.send(Warm(bytes=own_bytes()))
    settings_file = _await_begin(channel)
    if settings_file is None:
        channel.close()
        return 0
    try:
        engine, card = build(WorkerSettings.load(Path(settings_file)), _reporter(channel))
    except Exception as error:  # noqa: BLE001 - whatever it is, the client who asked for the model is told
        if not isinstance(error, FORESEEN):
            traceback.print_exc()
        channel.send(LoadFailed(code=_code(error), message=_one_line(error)))
        channel.wait(IDLE_S)  # the front answers by ending this process
        channel.close()
        return EX_LOAD
    gc.freeze()
    gc.enable()
    channel.send(Ready(card=card, pid=os.getpid()))
    del card  # the bytes of all tokens
    try:
        serve(channel, engine)
    except Exception as error:
        channel.send(Dying(message=f"{type(error).__name__}: {_text(error)}"))
        raise
    finally:
        channel.close()
    return 0


def _await_begin(channel: Channel[EngineIn]) -> str | None:
    """Return the settings file to begin with; None = told to stop."""
    while True:
        channel.wait()
        for message in channel.recv_all(1):
            match message:
                case Begin():
                    return message.settings
                case Stop():
                    return None
                case _:
                    raise ValueError(f"{type(message).__name__} came before Begin")


def serve(channel: Channel[EngineIn], engine: ServedEngine, clock: Callable[[], float] = time.monotonic) -> None:
    """Take messages between steps, report each step, sign life when idle; return at `Stop`.

    An empty step is reported at the start and after an abort that leaves nothing to do: the gauges of
    the pool go with the reports. A second without work is the time for what can wait.
    """
    said, untold, use_due = clock(), True, clock()
    engine.watch(channel.file)
    _send_if_new(channel, engine.idle())
    while True:
        if not (engine.has_work or untold):
            channel.wait(max(0.0, said + IDLE_S - clock()))
        for message in channel.recv_all():
            match message:
                case Submit():
                    engine.submit(message)
                case Abort():
                    engine.abort(message.key, message.choice)
                    untold = True
                case Stop():
                    return
        if engine.has_work or untold:
            channel.send(engine.step())
            said, untold = clock(), False
        elif clock() - said >= IDLE_S:
            _send_if_new(channel, engine.idle())
            said = clock()
            channel.send(Idle(now=said))
        if clock() >= use_due:
            use_due = clock() + USE_S
            channel.send(engine.use())


def _send_if_new(channel: Channel[EngineIn], news: Ceilings | None) -> None:
    if news is not None:
        channel.send(news)


def _reporter(channel: Channel[EngineIn]) -> Progress:
    """Pass on the progress of a load, each new phase at once, the rest now and then."""
    last_phase, last_time = "", 0.0

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last_phase, last_time
        now = time.monotonic()
        if phase != last_phase or now - last_time >= PROGRESS_S:
            last_phase, last_time = phase, now
            channel.send(LoadProgress(phase=phase, done=done, total=total))

    return report


def limit_threads(threads: int) -> None:
    """Settle the thread pools that libraries make when they are imported.

    OpenMP threads that spin at every barrier collapse when other programs want the cores: a decode step
    then took five times as long as with threads that sleep.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", ONEDNN_PRIMITIVES)
    if threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)


def _code(error: Exception) -> Code:
    return Code.PLUGIN_FAILED if isinstance(error, PluginError) else Code.MODEL_LOAD_FAILED


def _one_line(error: Exception) -> str:
    text = _text(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {text or 'an allocation failed'}"
    return text if text and isinstance(error, FORESEEN) else f"{type(error).__name__}: {text}"


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


def _warm() -> None:
    """Import what a load imports. What cannot be imported shows when a model is wanted."""
    with suppress(Exception):
        from inferd.engine import warm

        warm.up()


def _build(settings: WorkerSettings, progress: Progress) -> tuple[ServedEngine, ModelCard]:
    from inferd.engine.build import build_engine

    return build_engine(settings, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _build, _warm))
