"""`GET /v1/models` and `GET /v1/models/NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from .errors import ApiError
from .gateway import gateway_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from inferd_client.protocol import ModelInfo


async def models(request: Request) -> Response:
    gateway = gateway_of(request)
    found = [_model(model, gateway.started) for model in await gateway.client.models()]
    return JSONResponse({"object": "list", "data": found})


async def model(request: Request) -> Response:
    gateway, name = gateway_of(request), request.path_params["name"]
    for known in await gateway.client.models():
        if known.name == name:
            return JSONResponse(_model(known, gateway.started))
    raise ApiError(404, f"no model named {name!r}", code="model_not_found", param="model")


def _model(model: ModelInfo, created: int) -> dict[str, Any]:
    """The daemon's paths are not told."""
    more = {"loaded": model.loaded, "default": model.default, "context": model.context}
    return {"id": model.name, "object": "model", "created": created, "owned_by": "inferd", **more}
