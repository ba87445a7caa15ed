"""Engine processes: start one for a model, hear it, end it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import zmq

from inferd.channel import Channel, ChannelError, private_files
from inferd.engine.settings import WorkerSettings
from inferd.front.sockets import remove_rank_folders
from inferd.front.spare import EngineProcess, Spare
from inferd.link import Begin, Stop, engine_out
from inferd.process import describe_exit, spawn

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.front.model import Model
    from inferd.link import EngineOut
    from inferd.loop import Loop

STOP_GRACE_S = 2.0
LAST_WORDS_S = 0.02
MESSAGES_A_TURN = 64
SPARE_DELAY_S = 0.2
"""After a worker's end: its model may want another at once."""

SparePolicy = Literal["auto", "always", "off"]

OnMessage = Callable[["Model", "EngineOut"], None]
OnExit = Callable[["Model", str], None]


class Workers:
    """Spawns `python -m MODULE LINK THREADS`, tells it what to load and watches it."""

    def __init__(
        self,
        module: str,
        runtime: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        script: dict[str, Any] | None = None,
        cache: Path | None = None,
        *,
        threads: int = 0,
        spare: SparePolicy = "off",
    ) -> None:
        self._module = module
        self._runtime = runtime
        self._cache = cache
        self._context = context
        self._loop = loop
        self._script = script or {}
        self._numbers = count(1)
        self._starts: dict[str, int] = {}
        self._running: dict[Model, tuple[EngineProcess, Path]] = {}
        self._threads = threads
        self._policy = spare
        self._spare = Spare(self._spawn, loop)
        self._ending = False

    def keep_spare(self) -> None:
        """Start a spare process where the policy wants one and there is none."""
        wanted = self._policy == "always" or (self._policy == "auto" and not self._running)
        if wanted and not self._ending:
            self._spare.prepare()

    def loaded(self) -> None:
        """A load has succeeded."""
        self._spare.works_again()
        self.keep_spare()

    @property
    def spare_bytes(self) -> int | None:
        """Memory of the spare process; None without one."""
        return self._spare.bytes

    def start(self, model: Model, grant: int, *, on_message: OnMessage, on_exit: OnExit) -> None:
        """Start the worker of a model that has none. Raises OSError when the system refuses a process."""
        process = self._spare.take() or self._spawn()
        settings_file = self._runtime / f"engine-{process.child.pid}.json"
        with private_files():
            WorkerSettings(
                name=model.name,
                path=model.path,
                config=model.config,
                memory=grant,
                runtime=str(self._runtime),
                cache=str(self._cache or ""),
                script=self._script,
                attempt=self._starts.get(model.name, 0),
            ).save(settings_file)
        process.channel.send(Begin(settings=str(settings_file)))
        self._starts[model.name] = self._starts.get(model.name, 0) + 1
        model.child, model.channel = process
        self._running[model] = (process, settings_file)
        self._loop.add(process.channel.socket, lambda: self._read(model, on_message))
        self._loop.add(process.child.pidfd, lambda: self._ended(model, on_message, on_exit))

    def _spawn(self) -> EngineProcess:
        link = self._runtime / f"e{next(self._numbers)}.sock"
        child = spawn(self._module, str(link), str(self._threads))
        return EngineProcess(child, Channel(link, bind=False, decoder=engine_out, context=self._context))

    def stop(self, model: Model) -> None:
        """Ask the worker to exit; kill it when it does not."""
        if model in self._running:
            process, _ = self._running[model]
            process.channel.send(Stop())
            self._loop.after(STOP_GRACE_S, process.child.kill)

    def kill(self, model: Model) -> None:
        """Kill the worker with its process group; its end is reported as any other."""
        if model in self._running:
            self._running[model][0].child.kill()

    def close(self) -> None:
        """Kill all that still run, at the end of the daemon."""
        self._ending = True
        self._spare.close()
        for process, _ in self._running.values():
            process.child.kill()
        for model in list(self._running):
            self._clear(model)

    def stop_all(self) -> None:
        self._ending = True
        self._spare.close()
        for model in self._running:
            self.stop(model)

    @property
    def any_running(self) -> bool:
        return bool(self._running)

    def _read(self, model: Model, on_message: OnMessage) -> bool:
        """Handle what a worker has said; False when there was nothing."""
        (child, channel), _ = self._running[model]
        try:
            messages = channel.recv_all(MESSAGES_A_TURN)
        except ChannelError:
            child.kill()  # a worker that talks nonsense is as good as dead
            self._loop.remove(channel.socket)
            return False
        for message in messages:
            on_message(model, message)
        return bool(messages)

    def _ended(self, model: Model, on_message: OnMessage, on_exit: OnExit) -> None:
        (child, channel), _ = self._running[model]
        channel.wait(LAST_WORDS_S)
        while self._read(model, on_message):
            pass  # a front that was paused has more to hear, the reason of the end at last
        status = child.exit_status
        how = describe_exit(status if status is not None else -9)
        self._clear(model)
        on_exit(model, how)
        self._loop.after(SPARE_DELAY_S, self.keep_spare)

    def _clear(self, model: Model) -> None:
        process, settings_file = self._running.pop(model)
        self._loop.remove(process.channel.socket)
        self._loop.remove(process.child.pidfd)
        process.close()
        remove_rank_folders(self._runtime, process.child.pid)
        settings_file.unlink(missing_ok=True)
        model.child = model.channel = None
