"""All models: load on demand one at a time, idle unload, restart of dead workers, giving up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inferd.front.errors import Refusal
from inferd.front.ledger import Ledger, device_key
from inferd.front.loads import LoadQueue
from inferd.front.model import Model, ModelState, Outcome
from inferd.front.workers import Workers
from inferd.link import (
    PROCESS_BYTES,
    Ceilings,
    DeviceUse,
    Dying,
    Idle,
    LoadFailed,
    LoadProgress,
    Ready,
    StepReport,
    Warm,
)
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from inferd.config.schema import Config
    from inferd.front.catalog import Catalog
    from inferd.front.listener import Listener
    from inferd.link import EngineOut
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics


class Models:
    """Every model that is loaded, loading, leaving, or failed."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        ledger: Ledger,
        workers: Workers,
        loop: Loop,
        metrics: Metrics,
        log: Logger,
        *,
        default: str,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._ledger = ledger
        self._workers = workers
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self.default = default
        self.listener: Listener | None = None
        self.on_change: Callable[[Model], None] = lambda _model: None
        self.on_open: Callable[[Model], None] = lambda _model: None
        self.on_load: Callable[[Model], None] = lambda _model: None
        """Called as a load goes on."""
        self._models: dict[str, Model] = {}
        self._names: dict[str, str] = {}
        """What was asked for, to the name of the model it meant."""
        self._loads = LoadQueue(
            ledger, is_busy=self._one_loads, start=self._start, make_room=self._make_room, refuse=self._refuse
        )

    def all(self) -> list[Model]:
        return list(self._models.values())

    def get(self, name: str) -> Model | None:
        """Return a model that is not simply absent."""
        return self._models.get(self._names.get(name, name))

    def chat_template(self, name: str) -> str:
        """The configured template file of a model; empty = its own."""
        own = self._config.models.get(name)
        return own.chat_template if own is not None else ""

    def require(self, name: str) -> Model:
        """Return the model to serve a request with, loading it if need be. Raises Refusal."""
        model = self.get(name or self.default)
        if model is None:
            return self._open(name or self.default)
        if model.state == "failed":
            code, why = model.failure
            raise Refusal(code, f"model {model.name} failed: {why}")
        if model.state in ("draining", "unloading"):
            raise Refusal(Code.OVERLOADED, f"model {model.name} is being unloaded", retry_after_ms=500, retry_safe=True)
        return model

    def load(self, name: str, keep_alive_s: float | None, done: Outcome) -> None:
        """Load a model on request of a user, also one that failed before. Raises Refusal."""
        model = self.get(name or self.default)
        if model is not None and model.state == "failed":
            self._forget(model)
        model = self.require(name)
        if keep_alive_s is not None:
            model.keep_alive_s = keep_alive_s
        if model.state == "ready":
            done(None, "already loaded")
        else:
            model.loaded.append(done)

    def unload(self, name: str, done: Outcome) -> Model | None:
        """Unload once its requests are done; return the model so that a caller can cancel those."""
        model = self.get(name or self.default)
        if model is None:
            done(None, "not loaded")
            return None
        model.unloaded.append(done)
        if model.state == "failed" or model.child is None:
            self._give_up(model, Code.MODEL_LOAD_FAILED, "unloaded by a user", forget=True)
        elif model.state not in ("draining", "unloading"):
            self._set(model, "draining", "unload was asked for")
            self._leave_if_idle(model)
        return model

    def expire(self, model: Model) -> None:
        """Unload a model that was idle for long enough."""
        self._set(model, "draining", "idle")
        self._leave_if_idle(model)

    def stalled(self, model: Model) -> None:
        """Tell the world that a worker makes no progress."""
        model.stalled = True
        self.on_change(model)

    def give_up_worker(self, model: Model, why: str) -> None:
        """Kill a worker that is beyond hope; its end is handled as any other."""
        model.failure = (Code.ENGINE_LOST, why)
        self._workers.kill(model)

    def released(self, model: Model) -> None:
        """A request of the model ended."""
        if not model.busy:
            model.idle_since = self._loop.clock()
            self._leave_if_idle(model)

    def _open(self, name: str) -> Model:
        try:
            found = self._catalog.resolve(name)
        except ValueError as error:
            raise Refusal(Code.UNKNOWN_MODEL, str(error), field="model") from None
        model = self._models.get(found.name)
        if model is None or model.path != found.path:
            if model is not None:
                raise Refusal(Code.UNKNOWN_MODEL, f"{found.name} already names {model.path}", field="model")
            device = device_key(self._config.for_model(found.name).engine.device)
            model = Model.of(found, self._config, self.default, device)
            self._models[found.name] = model
            self._queue_load(model, "loading")
            self.on_open(model)
        self._names[name] = found.name
        return self.require(found.name)

    # --- loading ------------------------------------------------------------------------------

    def _queue_load(self, model: Model, state: ModelState) -> None:
        waiting = self._loads.add(model)
        self._set(model, state, "waiting for another load" if waiting > 1 else "starting")
        self._loop.after(0, self._loads.advance)

    def _one_loads(self) -> bool:
        return any(m.child is not None and m.state in ("loading", "restarting") for m in self._models.values())

    def _refuse(self, model: Model, why: str) -> None:
        self._give_up(model, Code.MODEL_LOAD_FAILED, f"{model.name} {why}", forget=True)

    def _make_room(self, model: Model) -> bool:
        """Unload the model idle for longest; True when one is on its way out."""
        others = [m for m in self._models.values() if m.device == model.device and m is not model]
        if any(m.state in ("draining", "unloading") for m in others):
            self._set(model, model.state, "waiting for memory")
            return True
        idle = [m for m in others if m.state == "ready" and not m.busy and not m.is_default]
        if not idle:
            return False
        victim = min(idle, key=lambda m: m.idle_since)
        self._set(model, model.state, f"waiting for memory of {victim.name}")
        self._set(victim, "draining", f"its memory is needed by {model.name}")
        self._leave_if_idle(victim)
        return True

    def _start(self, model: Model, grant: int) -> None:
        try:
            self._workers.start(model, grant, on_message=self._message, on_exit=self._exited)
        except OSError as error:
            self._exited(model, str(error))
            return
        model.last_heard, model.paused_s = self._loop.clock(), self._loop.paused_s
        self._set(model, model.state, "starting")
        model.load_timer = self._loop.after(self._config.daemon.load_timeout_s, lambda: self._load_too_long(model))

    def _load_too_long(self, model: Model) -> None:
        model.failure = (Code.MODEL_LOAD_FAILED, f"no answer within {self._config.daemon.load_timeout_s:g} s")
        self._workers.kill(model)

    # --- what workers say -----------------------------------------------------------------------

    def _message(self, model: Model, message: EngineOut) -> None:
        assert self.listener is not None
        now = model.last_heard = self._loop.clock()
        model.paused_s = self._loop.paused_s
        if isinstance(message, StepReport):
            model.last_step = now
            model.stalled = False
            self._metrics.step(message.stats, model.stats)
            model.stats = message.stats
            if message.stats.overlap is not None:
                model.steps[message.stats.overlap] += 1
            model.window.add(message.stats)
            self.listener.engine_report(model, message)
        elif isinstance(message, LoadProgress):
            model.load_done, model.load_total = message.done, message.total
            self.on_load(model)
            if message.phase != model.detail:
                self._set(model, model.state, message.phase)
        elif isinstance(message, Ready):
            self._became_ready(model, message)
        elif isinstance(message, LoadFailed):
            model.failure = (message.code, message.message)
            self._workers.kill(model)
        elif isinstance(message, Ceilings):
            model.ceilings = message
        elif isinstance(message, DeviceUse):
            model.use = message
        elif isinstance(message, Dying):
            model.failure = (Code.MODEL_LOAD_FAILED, message.message)
        elif isinstance(message, Idle):
            model.stalled = False
        else:
            assert isinstance(message, Warm)

    def _became_ready(self, model: Model, message: Ready) -> None:
        assert self.listener is not None
        card = model.card = message.card
        if model.load_timer is not None:
            model.load_timer.cancel()
        model.failed_loads = 0
        now = model.idle_since = model.last_step = self._loop.clock()
        model.device = device_key(card.device)
        self._ledger.settle(model.device, model.name, card.weight_bytes + card.kv_bytes + PROCESS_BYTES)
        if model.state not in ("draining", "unloading"):
            self._set(model, "ready", "")
        self._log.info("model ready", model=model.name, pid=message.pid, device=card.device, exactness=card.exactness)
        self._answer(model.loaded, None, "loaded")
        self.listener.model_ready(model)
        self._workers.loaded()
        model.idle_since = now
        self._leave_if_idle(model)
        self._loads.advance()

    def _exited(self, model: Model, how: str) -> None:
        """The worker is gone, on purpose or not."""
        assert self.listener is not None
        now = self._loop.clock()
        state, was_loaded = model.state, model.card is not None
        if model.load_timer is not None:
            model.load_timer.cancel()
        self._ledger.release(model.name)
        model.stats, model.card, model.use, model.stalled = None, None, None, False
        model.steps.clear()
        if state == "unloading":
            self._forget(model)
            self._answer(model.loaded, Code.MODEL_LOAD_FAILED, f"{model.name} was unloaded before it was ready")
            self._answer(model.unloaded, None, "unloaded")
            self._loads.advance()
            return
        code, told = model.failure
        model.failure = (Code.MODEL_LOAD_FAILED, "")
        why = told or f"the engine ended while {'serving' if was_loaded else 'loading'}: {how}"
        self._log.error("engine lost", model=model.name, why=why, requests=len(model.requests))
        if was_loaded:
            model.note_death(now, told or how, [r for r in model.requests.values() if r.submitted])
            self.listener.engine_lost(model, told or how)
        else:
            model.failed_loads += 1
            if not told:
                model.note_death(now, how, [])
        self._metrics.count("worker_restarts_total")
        if model.hopeless or state == "draining":
            self._give_up(model, code, why, forget=state == "draining")
        else:
            model.restarts += 1
            self._set(model, "restarting", why)
            self._loop.after(model.backoff_s, lambda: self._restart(model))
        self._loads.advance()

    def _restart(self, model: Model) -> None:
        if model.state == "restarting" and self._models.get(model.name) is model:
            self._queue_load(model, "restarting")

    def _give_up(self, model: Model, code: Code, why: str, *, forget: bool) -> None:
        """End what waits for the model; keep it as failed, or drop it."""
        assert self.listener is not None
        model.failure = (code, why)
        self._loads.discard(model)
        self._set(model, "failed", why)
        self._answer(model.loaded, code, why)
        self.listener.model_failed(model, code, why)
        if forget:
            self._forget(model)
            self._answer(model.unloaded, None, "unloaded")

    # --- leaving --------------------------------------------------------------------------------

    def _leave_if_idle(self, model: Model) -> None:
        """End the worker of a draining model that has nothing left to do."""
        if model.state == "draining" and not model.busy:
            self._set(model, "unloading", model.detail)
            if model.card is None:
                self._workers.kill(model)  # it does not listen while it loads, and has nothing to finish
            else:
                self._workers.stop(model)

    def end_calls(self, code: Code, why: str) -> None:
        """Answer who waits for a load or an unload, at the end of the daemon."""
        for model in self._models.values():
            self._answer(model.loaded, code, why)
            self._answer(model.unloaded, None, "unloaded")

    def _forget(self, model: Model) -> None:
        if self._models.pop(model.name, None) is not None:
            self._names = {asked: name for asked, name in self._names.items() if name != model.name}
            self.on_change(model)

    def _set(self, model: Model, state: ModelState, detail: str) -> None:
        changed = (state, detail) != (model.state, model.detail)
        model.state, model.detail = state, detail
        if changed:
            self.on_change(model)

    @staticmethod
    def _answer(waiting: list[Outcome], code: Code | None, detail: str) -> None:
        asked, waiting[:] = waiting[:], []
        for done in asked:
            done(code, detail)
