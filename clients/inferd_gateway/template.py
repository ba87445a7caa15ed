"""What the gateway must know of a model's template, learnt from dry runs and remembered."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from inferd_client import AsyncClient, InvalidParam
from inferd_client.protocol import Message

from .errors import unsupported
from .thinking import OPEN
from .tools import FORMATS, ToolFormat
from .tools.formats import format_of

MAX_KNOWN = 64
_TOOL = {"type": "function", "function": {"name": "probe", "description": "probe", "parameters": {"type": "object"}}}
_CALL = {"id": "probe0123", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
_ASK = Message(role="user", content="probe")
_EXCHANGE = (
    _ASK,
    Message(role="assistant", content="", tool_calls=[_CALL]),
    Message(role="tool", content="probe", name="probe", tool_call_id="probe0123"),
)


class Spoken(NamedTuple):
    """How a model writes tool calls."""

    format: ToolFormat
    marker: int | None
    """Token id of the format's marker where that is one special token."""


class Templates:
    """Remembers the answers for the models and template arguments used last."""

    def __init__(self, client: AsyncClient, tool_format: str = "auto") -> None:
        self._client = client
        self._forced = FORMATS.get(tool_format)
        self._known: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    async def opens_thought(self, model: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the prompt itself opens the reasoning, so that an answer starts inside of it."""
        spelled = repr(sorted((name, repr(value)) for name, value in arguments.items()))
        key = ("think", model, hashlib.sha256(spelled.encode(errors="replace")).digest())  # arguments may be large
        if key not in self._known:
            self._remember(key, await self._ends_in_think(model, arguments))
        return self._recall(key)

    async def tool_format(self, model: str) -> Spoken:
        """Return how the model writes tool calls. Raises ApiError where that is unknown, InvalidParam as `render`."""
        key = ("tools", model)
        if key not in self._known:
            found = self._forced or format_of(await self._prompt_with_tools(model))
            if found is None:
                text = "how this model writes tool calls is not known; the operator can say so with --tool-format"
                raise unsupported("tools", text)
            self._remember(key, Spoken(found, await self._token(model, found.marker)))
        return self._recall(key)

    async def _ends_in_think(self, model: str, arguments: Mapping[str, Any]) -> bool:
        try:
            rendered = await self._client.render([_ASK], model=model, template_args=arguments)
        except InvalidParam:
            return False  # what is wrong is told by the request itself
        return rendered.text.rstrip().endswith(OPEN)

    async def _prompt_with_tools(self, model: str) -> str:
        try:
            return (await self._client.render(_EXCHANGE, model=model, tools=[_TOOL])).text
        except InvalidParam:  # a template may refuse this exchange and take tools all the same
            return (await self._client.render([_ASK], model=model, tools=[_TOOL])).text

    async def _token(self, model: str, marker: str) -> int | None:
        if not marker:
            return None
        ids = await self._client.tokenize(marker, model=model, add_bos=False, special_tokens=True)
        return ids[0] if len(ids) == 1 else None

    def _remember(self, key: tuple[object, ...], value: Any) -> None:
        self._known[key] = value
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _recall(self, key: tuple[object, ...]) -> Any:
        self._known.move_to_end(key)
        return self._known[key]
