"""An OpenAI-compatible HTTP gateway: a plain client of the daemon. Needs starlette and uvicorn beside the client."""

from .app import make_app
from .settings import Settings

__all__ = ["Settings", "make_app"]
