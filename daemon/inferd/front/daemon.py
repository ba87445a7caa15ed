"""The front as a whole: its parts put together, its one loop, and how it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferd.front.accounts import Accounts
from inferd.front.control import ControlCalls
from inferd.front.data import DataCalls
from inferd.front.dispatch import Dispatcher
from inferd.front.errors import Refusal
from inferd.front.events import Events
from inferd.front.grammars import Grammars
from inferd.front.hardware import Hardware
from inferd.front.intake import Intake
from inferd.front.ledger import Ledger
from inferd.front.models import Models
from inferd.front.notify import Notifier
from inferd.front.outputs import Outputs
from inferd.front.requests import Requests
from inferd.front.sessions import Sessions
from inferd.front.status import CachedMemory, StatusBuilder
from inferd.front.telemetry import Telemetry
from inferd.front.texts import Texts
from inferd.front.traffic import TrafficKeeper
from inferd.front.watch import Watch
from inferd.front.workers import Workers
from inferd.loop import Loop
from inferd.metrics import Metrics
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from inferd.config.paths import RuntimePaths
    from inferd.config.schema import Config
    from inferd.front.catalog import Catalog
    from inferd.front.model import Model
    from inferd.front.sockets import Sockets
    from inferd.log import Logger

LoadWatch = Callable[[str, str, int, int], None]
"""Told of a model's load: name, phase (empty = it is over), done, of how much (0 = not known)."""

NOTIFY_S = 0.5
FLUSH_S = 1.0
"""Longest wait at the end for clients to take their last messages."""
WORKER_EXIT_S = 0.5


class FrontDaemon:
    """Everything between the sockets and the child processes."""

    def __init__(
        self,
        config: Config,
        paths: RuntimePaths,
        sockets: Sockets,
        catalog: Catalog,
        log: Logger,
        *,
        default: str,
        engine_module: str,
        text_module: str,
        grammar_module: str | None,
        script: dict[str, Any] | None = None,
        must_load: bool = False,
        on_load: LoadWatch = lambda *_: None,
    ) -> None:
        settings = config.daemon
        self._config = config
        self._log = log
        self.instance = secrets.token_hex(8)
        self.loop = loop = Loop()
        self.metrics = metrics = Metrics()
        memory = CachedMemory(loop.clock)
        ledger = Ledger(settings.memory_limit, settings.memory_reserve, memory)
        self.sessions = sessions = Sessions(settings, sockets, loop, metrics, self.instance)
        self.texts = texts = Texts(text_module, config.text, paths.runtime, sockets.context, loop, metrics, log)
        self.workers = workers = Workers(
            engine_module,
            paths.runtime,
            sockets.context,
            loop,
            script,
            paths.cache,
            threads=config.engine.threads,
            spare=settings.spare_worker,
        )
        workers.keep_spare()  # first of all: nothing else takes as long
        ledger.besides["spare worker"] = lambda: workers.spare_bytes
        self.models = models = Models(config, catalog, ledger, workers, loop, metrics, log, default=default)
        self.hardware = hardware = Hardware(ledger, memory, models.all, log=log)
        self.accounts = accounts = Accounts(config, hardware, models.all, loop)
        self.grammars = grammars = Grammars(
            grammar_module, config.grammar.timeout_s, paths.runtime, sockets.context, loop, metrics, log
        )
        self.requests = requests = Requests(settings, sessions, models, texts, grammars, accounts, loop, metrics, log)
        intake = Intake(settings, requests, sessions, models, texts, grammars, loop, metrics)
        self.traffic = traffic = TrafficKeeper(paths.state, enabled=config.traffic.record, loop=loop, log=log)
        requests.on_open, requests.on_close = traffic.arrived, traffic.ended
        self.status = status = StatusBuilder(
            self.instance, settings.max_queue, models, requests, sessions, hardware, accounts, metrics, loop
        )
        self.events = Events(sockets, status, loop, settings.events_hz)
        Watch(models, loop, log, settings.stall_s)
        self.telemetry = telemetry = Telemetry(config.metrics.port, status, metrics, loop)
        data = DataCalls(sessions, intake, models, texts, catalog, requests.budget)
        control = ControlCalls(sessions, requests, models, catalog, status, traffic, telemetry, self.drain)
        dispatcher = Dispatcher(sockets, sessions, data, control, metrics, log, settings.max_frame)
        sessions.on_gone, sessions.on_slow = requests.abandon, requests.slow
        models.listener = Outputs(requests, intake, sessions, accounts, loop, metrics, log)
        models.on_open, models.on_change = self._model_opened, self._model_changed
        models.on_load, self._on_load, self._control = self._load_goes_on, on_load, control
        dispatcher.listen(loop)
        self._notifier = Notifier()
        self._must_load = config.preload and (must_load or self._notifier.wanted)
        """The default model has not served yet, and the start has failed if it cannot."""
        self.start_failure = ""
        self._stop_at: float | None = None
        hardware.start()
        if self._notifier.wanted:
            loop.after(0, self._notify)

    def preload(self) -> None:
        """Begin to load the default model; how that goes shows in its state."""
        try:
            self.models.require("")
        except Refusal as refusal:
            self._log.error("preload failed", why=refusal.message)

    def run(self) -> None:
        """Serve until drained."""
        while not self._finished():
            self.loop.run_once()
        self._wind_down()

    def drain(self, timeout_s: float | None = None) -> None:
        """Accept nothing new, finish what runs within the time, then end. A second call shortens the time."""
        timeout = self._config.daemon.drain_s if timeout_s is None else max(0.0, timeout_s)
        stop_at = self.loop.clock() + timeout
        if self._stop_at is None:
            self._log.info("draining", requests=len(self.requests.live), timeout_s=timeout)
            self._notifier.stopping(timeout)
        self.requests.draining = True
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)
        self.loop.after(timeout, lambda: None)  # so that the loop wakes then

    def _finished(self) -> bool:
        if self._stop_at is None:
            return False
        return not self.requests.live or self.loop.clock() >= self._stop_at

    def _wind_down(self) -> None:
        """End what is left with an answer, give clients a moment to read it, end the children."""
        why = "the daemon is shutting down"
        self.requests.end_all(Code.SERVER_SHUTDOWN, why)
        self.models.end_calls(Code.SERVER_SHUTDOWN, why)
        self.events.snapshot()
        self.workers.stop_all()
        until = self.loop.clock() + FLUSH_S
        self.loop.after(WORKER_EXIT_S, lambda: None)
        while self.loop.clock() < until and self.sessions.unsent:
            self.loop.run_once()
        self.close()
        self._log.info("stopped")

    def close(self) -> None:
        """End the children at once, and keep what is to be kept."""
        self.traffic.close()
        self.telemetry.close()
        self.hardware.close()
        self.workers.close()
        self.texts.close()
        self.grammars.close()

    def _model_opened(self, model: Model) -> None:
        self.texts.open(model.name, model.path, self.models.chat_template(model.name))

    def _model_changed(self, model: Model) -> None:
        self.events.model_changed(model)
        self._tell_load(model)
        if self.models.get(model.name) is None:
            self.texts.close_model(model.name)
        if self._must_load and model.is_default:
            self._first_load(model)

    def _load_goes_on(self, model: Model) -> None:
        self._control.load_goes_on(model)
        self._tell_load(model)

    def _tell_load(self, model: Model) -> None:
        goes_on = model.state in ("loading", "restarting")
        self._on_load(model.name, model.detail if goes_on else "", model.load_done, model.load_total)

    def _first_load(self, model: Model) -> None:
        """Watch the load that the start depends on: a service manager or a person waits for its outcome."""
        if model.state == "ready":
            self._must_load = False
        elif model.state == "failed":
            self._must_load = False
            self.start_failure = model.detail
            self._notifier.status(f"{model.name}: failed {model.detail}")
            self.drain(0.0)

    def _notify(self) -> None:
        """Tell systemd how it goes: ready when serving, more time while loading, alive while steps progress."""
        models = self.models.all()
        self._notifier.ready(self.status.ready or not self._config.preload)
        self._notifier.status("; ".join(f"{m.name}: {m.state} {m.detail}".strip() for m in models) or "no model")
        if any(m.state in ("loading", "restarting") for m in models):
            self._notifier.still_loading()
        if self._notifier.watchdog_s is not None and not any(m.stalled for m in models):
            self._notifier.watchdog()
        self.loop.after(min(NOTIFY_S, self._notifier.watchdog_s or NOTIFY_S), self._notify)
