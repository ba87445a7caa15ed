"""Engine processes: start one for a model, hear it, end it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import zmq

from inferd.channel import Channel, ChannelError, private_files
from inferd.engine.settings import WorkerSettings
from inferd.front.sockets import remove_rank_folders
from inferd.link import Stop, engine_out
from inferd.process import Child, describe_exit, spawn

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.front.loop import Loop
    from inferd.front.model import Model
    from inferd.link import EngineOut

STOP_GRACE_S = 2.0
LAST_WORDS_S = 0.02
MESSAGES_A_TURN = 64

OnMessage = Callable[["Model", "EngineOut"], None]
OnExit = Callable[["Model", str], None]


class Workers:
    """Spawns `python -m MODULE LINK SETTINGS` and watches it."""

    def __init__(
        self,
        module: str,
        runtime: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        script: dict[str, Any] | None = None,
        cache: Path | None = None,
    ) -> None:
        self._module = module
        self._runtime = runtime
        self._cache = cache
        self._context = context
        self._loop = loop
        self._script = script or {}
        self._numbers = count(1)
        self._starts: dict[str, int] = {}
        self._running: dict[Model, tuple[Child, Channel[EngineOut], Path]] = {}

    def start(self, model: Model, grant: int, *, on_message: OnMessage, on_exit: OnExit) -> None:
        """Start the worker of a model that has none. Raises OSError when the system refuses a process."""
        number = next(self._numbers)
        settings_file = self._runtime / f"engine-{number}.json"
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
        link = self._runtime / f"e{number}.sock"
        child = spawn(self._module, str(link), str(settings_file))
        channel = Channel(link, bind=False, decoder=engine_out, context=self._context)
        self._starts[model.name] = self._starts.get(model.name, 0) + 1
        model.child, model.channel = child, channel
        self._running[model] = (child, channel, settings_file)
        self._loop.add(channel.socket, lambda: self._read(model, on_message))
        self._loop.add(child.pidfd, lambda: self._ended(model, on_message, on_exit))

    def stop(self, model: Model) -> None:
        """Ask the worker to exit; kill it when it does not."""
        if model in self._running:
            child, channel, _ = self._running[model]
            channel.send(Stop())
            self._loop.after(STOP_GRACE_S, child.kill)

    def kill(self, model: Model) -> None:
        """Kill the worker with its process group; its end is reported as any other."""
        if model in self._running:
            self._running[model][0].kill()

    def close(self) -> None:
        """Kill all that still run, at the end of the daemon."""
        for child, _, _ in self._running.values():
            child.kill()
        for model in list(self._running):
            self._clear(model)

    def stop_all(self) -> None:
        for model in self._running:
            self.stop(model)

    @property
    def any_running(self) -> bool:
        return bool(self._running)

    def _read(self, model: Model, on_message: OnMessage) -> None:
        child, channel, _ = self._running[model]
        try:
            messages = channel.recv_all(MESSAGES_A_TURN)
        except ChannelError:
            child.kill()  # a worker that talks nonsense is as good as dead
            self._loop.remove(channel.socket)
            return
        for message in messages:
            on_message(model, message)

    def _ended(self, model: Model, on_message: OnMessage, on_exit: OnExit) -> None:
        child, channel, _ = self._running[model]
        channel.wait(LAST_WORDS_S)
        self._read(model, on_message)
        status = child.exit_status
        how = describe_exit(status if status is not None else -9)
        self._clear(model)
        on_exit(model, how)

    def _clear(self, model: Model) -> None:
        child, channel, settings_file = self._running.pop(model)
        self._loop.remove(channel.socket)
        self._loop.remove(child.pidfd)
        child.reap()
        remove_rank_folders(self._runtime, child.pid)
        channel.close()
        settings_file.unlink(missing_ok=True)
        model.child = model.channel = None
