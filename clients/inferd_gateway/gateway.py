"""What every request handler needs: the client, what is known of models, the settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from inferd_client import AsyncClient, Code, RetryPolicy, Timeouts

from .errors import ApiError
from .template import Templates

if TYPE_CHECKING:
    from starlette.requests import Request

    from .settings import Settings

_PATH_HEADS = ("/", ".", "~")


class Gateway:
    """One for the life of the server. Raises ValueError for a key file that is none."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = int(time.time())
        self.client = AsyncClient(
            settings.runtime,
            key_file=settings.key_file,
            name="inferd-gateway",
            timeouts=Timeouts(connect=3.0, reconnect=3.0),
            retry=RetryPolicy(codes=frozenset({Code.ENGINE_LOST})),  # a full queue is told to the HTTP client
        )
        self.templates = Templates(self.client, settings.tool_format)

    async def model_name(self, name: str | None) -> str:
        """Return the name of the model asked for, the default one where none is. Raises ApiError.

        A name is never a path: who may use the gateway may not thereby open the daemon's files.
        """
        if not name:
            return (await self.client.status()).default_model
        if name.startswith(_PATH_HEADS) and all(model.name != name for model in await self.client.models()):
            raise ApiError(404, f"no model named {name!r}", code="model_not_found", param="model")
        return name

    @property
    def options(self) -> dict[str, Any]:
        """Of every generation."""
        return {"deadline": self.settings.request_timeout_s}


def gateway_of(request: Request) -> Gateway:
    return request.app.state.gateway
