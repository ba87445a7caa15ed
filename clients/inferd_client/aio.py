"""The asyncio client: the same methods, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from . import protocol as p
from .aio_streams import AsyncEventStream, AsyncStream
from .assembly import Patience, settle
from .base import ClientBase
from .call import Asked, Item
from .calls import Messages, Planned, new_id, plan_chat, plan_generate, plan_render
from .mailbox import AsyncMailbox, WaitedInVain
from .options import ChatOptions, RequestOptions, Timeouts
from .results import Completion

R = TypeVar("R")
OnProgress = Callable[[p.Progress], object]


class AsyncClient(ClientBase):
    """Access to a daemon from asyncio. Methods, options, results and errors are those of `Client`.

    `await client.generate(...)` returns the result; `client.generate(..., stream=True)` returns at once, for
    `async for`. Cancelling the task that waits cancels at the daemon. One client may serve several loops.
    """

    # generation

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Unpack[RequestOptions]
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[RequestOptions]
    ) -> AsyncStream: ...
    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[RequestOptions]
    ) -> Coroutine[Any, Any, Completion] | AsyncStream:
        """Continue a text or a list of token ids. Raises as `Client.generate` does."""
        return self._work(plan_generate(prompt, options), stream)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]) -> AsyncStream: ...
    def chat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Completion] | AsyncStream:
        """Answer a chat with the model's own template. Raises as `Client.chat` does."""
        return self._work(plan_chat(messages, options), stream)

    async def cancel(self, request: str | AsyncStream | Completion, *, anywhere: bool = False) -> None:
        """End a request, by its id or stream. Its reader sees the reason `cancelled`. Idempotent.

        `anywhere` ends requests of other clients by that id too. Raises Unauthorized without the role admin.
        """
        target = request if isinstance(request, str) else request.id
        await self._ask(p.Cancel(id=new_id(), request=target, anywhere=anywhere), p.Ok)

    # text

    async def tokenize(
        self, text: str, *, model: str = "", add_bos: bool = True, special_tokens: bool = False
    ) -> list[int]:
        """Return the token ids of `text`. Raises UnknownModel."""
        message = p.Tokenize(id=new_id(), model=model, text=text, add_bos=add_bos, special_tokens=special_tokens)
        return (await self._ask(message, p.Tokenized)).ids

    async def render(
        self,
        messages: Messages,
        *,
        model: str = "",
        tools: Sequence[dict[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> p.Rendered:
        """Return text and ids of what a chat would send to the model. Raises UnknownModel, InvalidParam."""
        return await self._ask(plan_render(messages, model, tools, template_args).message, p.Rendered)

    # the daemon

    async def status(self) -> p.StatusReply:
        """Return the state of the daemon, its models, devices and requests."""
        return await self._ask(p.Status(id=new_id()), p.StatusReply)

    async def models(self) -> tuple[p.ModelInfo, ...]:
        """Return the models in the store and those loaded."""
        return (await self._ask(p.Models(id=new_id()), p.ModelsReply)).models

    async def plugins(self) -> tuple[p.PluginInfo, ...]:
        """Return every plugin with its state and why it was not chosen."""
        return (await self._ask(p.Plugins(id=new_id()), p.PluginsReply)).plugins

    async def load(
        self, model: str, *, keep_alive_s: float | None = None, on_progress: OnProgress | None = None
    ) -> str:
        """Load a model; return when it is ready. Raises UnknownModel, ModelLoadFailed, Unauthorized."""
        message = p.Load(id=new_id(), model=model, keep_alive_s=keep_alive_s)
        return (await self._ask(message, p.Ok, on_progress, self._patient)).detail

    async def unload(self, model: str, *, force: bool = False) -> str:
        """Unload a model once its requests are done, or cancel them with `force`; say `unloaded` or `not loaded`."""
        return (await self._ask(p.Unload(id=new_id(), model=model, force=force), p.Ok, timeouts=self._patient)).detail

    async def traffic(self, model: str = "", *, clear: bool = False) -> p.TrafficReply:
        """Return the traffic record, of all models or one; `clear` forgets it. Raises Unauthorized."""
        return await self._ask(p.Traffic(id=new_id(), model=model, clear=clear), p.TrafficReply)

    async def metrics(self) -> str:
        """Return all metrics as Prometheus text."""
        return (await self._ask(p.Metrics(id=new_id()), p.MetricsReply)).text

    async def drain(self, timeout_s: float | None = None) -> str:
        """Make the daemon finish what runs, for at most `timeout_s`, and exit. Raises Unauthorized."""
        return (await self._ask(p.Drain(id=new_id(), timeout_s=timeout_s), p.Ok)).detail

    def events(self, *, timeout: float | None = None) -> AsyncEventStream:
        """Return an endless async iterator of snapshots and model events; see `Client.events`."""
        return AsyncEventStream(self, self._open(), timeout)

    # life

    async def close(self) -> None:
        """Cancel what is in flight, here and at the daemon, and disconnect. Idempotent."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _work(self, planned: Planned, stream: bool) -> Coroutine[Any, Any, Completion] | AsyncStream:
        return AsyncStream(self, self._open(), planned) if stream else self._complete(planned)

    async def _complete(self, planned: Planned) -> Completion:
        return await AsyncStream(self, self._open(), planned).result()

    async def _ask(
        self, message: Asked, kind: type[R], on_progress: OnProgress | None = None, timeouts: Timeouts | None = None
    ) -> R:
        mailbox: AsyncMailbox[Item] = AsyncMailbox()
        planned = Planned(message, timeouts)
        patience = Patience(timeouts or self.timeouts)
        driver = self._open()
        call = self.new_call(planned, mailbox.put)
        driver.submit(call)
        try:
            while True:
                arrival = await mailbox.get(patience.remaining())
                patience.check(arrival.at, arrival.item)
                if (answer := settle(arrival.item, kind, on_progress)) is not None:
                    return answer
        except WaitedInVain:
            raise patience.ran_out() from None
        finally:
            driver.abandon(call)
