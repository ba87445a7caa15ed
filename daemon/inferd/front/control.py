"""The calls of the control socket, which never queue behind data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from inferd.front.errors import Refusal, invalid
from inferd.front.requests import error_of
from inferd.front.validate import check_keep_alive, check_model_name
from inferd_client.protocol import (
    Cancel,
    Caps,
    Code,
    Drain,
    Load,
    MetricsReply,
    ModelInfo,
    ModelsReply,
    Ok,
    PluginInfo,
    Plugins,
    PluginsReply,
    Progress,
    Status,
    TrafficReply,
    Unload,
)
from inferd_client.protocol import (
    Metrics as MetricsCall,
)
from inferd_client.protocol import (
    Models as ModelsCall,
)
from inferd_client.protocol import (
    Traffic as TrafficCall,
)

if TYPE_CHECKING:
    from inferd.front.catalog import Catalog
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.front.records import Session
    from inferd.front.requests import Requests
    from inferd.front.sessions import Sessions
    from inferd.front.status import StatusBuilder
    from inferd.front.telemetry import Telemetry
    from inferd.front.traffic import TrafficKeeper

Call = Cancel | Status | ModelsCall | Load | Unload | Plugins | TrafficCall | MetricsCall | Drain


class ControlCalls:
    """Handler of every message of the control socket but hello and ping."""

    def __init__(
        self,
        sessions: Sessions,
        requests: Requests,
        models: Models,
        catalog: Catalog,
        status: StatusBuilder,
        traffic: TrafficKeeper,
        telemetry: Telemetry,
        drain: Callable[[float | None], None],
    ) -> None:
        self._sessions = sessions
        self._requests = requests
        self._models = models
        self._catalog = catalog
        self._status = status
        self._traffic = traffic
        self._telemetry = telemetry
        self._drain = drain
        self._loads: list[tuple[Model, Session, str]] = []
        """Calls that wait for a model: the model, who asked, the id of the call."""

    def handle(self, session: Session, message: Call) -> None:
        """Raises Refusal."""
        if len(message.id) > Caps.ID_CHARS:
            raise invalid("id", f"at most {Caps.ID_CHARS} characters", Caps.ID_CHARS)
        match message:
            case Cancel():
                detail = self._requests.cancel(session, message.request, anywhere=message.anywhere)
                self._sessions.send_control(session, Ok(id=message.id, detail=detail))
            case Status():
                self._send_status(session, message)
            case ModelsCall():
                self._sessions.send_control(session, ModelsReply(id=message.id, models=self._list_models()))
            case Load():
                self._load(session, message)
            case Unload():
                self._unload(session, message)
            case Plugins():
                self._sessions.send_control(session, PluginsReply(id=message.id, plugins=self._list_plugins()))
            case TrafficCall():
                self._send_traffic(session, message)
            case MetricsCall():
                self._sessions.send_control(session, MetricsReply(id=message.id, text=self._telemetry.text()))
            case Drain():
                if message.timeout_s is not None and message.timeout_s != message.timeout_s:
                    raise invalid("timeout_s", "must be a number")
                self._sessions.send_control(session, Ok(id=message.id, detail="draining"))
                self._drain(message.timeout_s)

    def _load(self, session: Session, message: Load) -> None:
        check_model_name(message.model)
        check_keep_alive(message.keep_alive_s)
        self._requests.refuse_if_draining()
        answer = self._answer_later(session, message.id)

        def over(code: Code | None, detail: str) -> None:
            self._loads = [load for load in self._loads if load[1:] != (session, message.id)]
            answer(code, detail)

        self._models.load(message.model, message.keep_alive_s, over)
        model = self._models.get(message.model or self._models.default)
        if model is not None and model.state != "ready":
            self._loads.append((model, session, message.id))

    def load_goes_on(self, model: Model) -> None:
        """Tell those who asked for the load how far it is."""
        for loading, session, call_id in self._loads:
            if loading is model:
                report = Progress(
                    id=call_id, state="loading", done=model.load_done, total=model.load_total, reason=model.detail
                )
                self._sessions.send_control(session, report)

    def _unload(self, session: Session, message: Unload) -> None:
        check_model_name(message.model)
        model = self._models.unload(message.model, self._answer_later(session, message.id))
        if model is not None and message.force:
            for request in list(model.requests.values()):
                self._requests.cancel_request(request)

    def _send_status(self, session: Session, message: Status) -> None:
        """A user sees its own requests only."""
        status = self._status.build(request_id=message.id)
        if session.role != "admin":
            mine = tuple(r for r in status.requests if r.client == session.name)
            status = msgspec.structs.replace(status, requests=mine)
        self._sessions.send_control(session, status)

    def _send_traffic(self, session: Session, message: TrafficCall) -> None:
        check_model_name(message.model)
        found = self._traffic.reports(message.model)
        if message.clear:
            self._traffic.clear(message.model)
        reply = TrafficReply(id=message.id, models=found, enabled=self._traffic.enabled)
        self._sessions.send_control(session, reply)

    def _answer_later(self, session: Session, call_id: str) -> Callable[[Code | None, str], None]:
        def answer(code: Code | None, detail: str) -> None:
            reply = Ok(id=call_id, detail=detail) if code is None else error_of(Refusal(code, detail), call_id)
            self._sessions.send_control(session, reply)

        return answer

    def _list_models(self) -> tuple[ModelInfo, ...]:
        """What the store has, marked with what is loaded, and what is loaded from elsewhere."""
        known = {info.name: info for info in self._catalog.list()}
        for model in self._models.all():
            info = known.get(model.name) or ModelInfo(name=model.name, path=model.path, bytes=model.file_bytes)
            known[model.name] = _marked(info, model)
        default = self._models.default
        return tuple(msgspec.structs.replace(info, default=info.name == default) for info in known.values())

    def _list_plugins(self) -> tuple[PluginInfo, ...]:
        """What the engines found; a plugin that one engine chose is `chosen`."""
        found: dict[tuple[str, str], PluginInfo] = {}
        for card in [model.card for model in self._models.all() if model.card is not None]:
            for info in card.plugin_table:
                if info.state == "chosen" or (info.kind, info.name) not in found:
                    found[info.kind, info.name] = info
        return tuple(found[key] for key in sorted(found))


def _marked(info: ModelInfo, model: Model) -> ModelInfo:
    return msgspec.structs.replace(
        info,
        loaded=model.card is not None,
        state=model.state,
        architecture=model.card.architecture if model.card else info.architecture,
        context=model.card.context if model.card else info.context,
        problem=model.detail if model.state == "failed" else info.problem,
    )
