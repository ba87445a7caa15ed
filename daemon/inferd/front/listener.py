"""What the models tell to who serves requests with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferd.front.model import Model
    from inferd.link import StepReport
    from inferd_client.protocol import Code


class Listener(Protocol):
    """Who serves requests with the models."""

    def model_ready(self, model: Model) -> None: ...
    def model_failed(self, model: Model, code: Code, why: str) -> None:
        """The model will not come; its requests end."""
        ...

    def engine_lost(self, model: Model, why: str) -> None:
        """The worker died; what was in it ends, the rest waits for its successor."""
        ...

    def engine_report(self, model: Model, report: StepReport) -> None: ...
