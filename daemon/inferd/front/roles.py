"""What needs the role admin. Asked before a message reaches its handler, on both sockets.

An admin reaches the machine anyway (an ipc socket, or a key allowed as admin). A user of tcp runs requests on
the models that the operator offers: it cannot open files by path, change what stays loaded, pass others by, or
touch their work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.front.errors import Refusal
from inferd_client.protocol import Cancel, Code, Drain, Generate, Load, Render, Tokenize, Traffic, Unload

if TYPE_CHECKING:
    from inferd.front.records import Role


def check_role(role: Role, message: Any) -> None:
    """Raise Refusal when `message` asks for more than `role` may."""
    if role == "admin":
        return
    asked = _admin_part(message)
    if asked is not None:
        field, what = asked
        raise Refusal(Code.UNAUTHORIZED, f"{what} needs the role admin", field=field)


def _admin_part(message: Any) -> tuple[str | None, str] | None:
    """Return the field and the name of what only an admin may ask for; None when a user may ask it all."""
    match message:
        case Load() | Unload() | Drain():
            return None, type(message).__name__.lower()
        case Cancel(anywhere=True):
            return "anywhere", "cancelling the request of another client"
        case Traffic(clear=True):
            return "clear", "clearing the traffic record"
        case Generate() | Render() | Tokenize() if _is_path(message.model):
            return "model", "a model by its path"
        case Generate() if message.keep_alive_s is not None:
            return "keep_alive_s", "changing how long a model stays loaded"
        case Generate() if message.priority > 0:
            return "priority", "a priority above 0"
        case _:
            return None


def _is_path(model: str) -> bool:
    return "/" in model or model.endswith(".gguf")
