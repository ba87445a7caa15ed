"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from . import protocol as p
from .assembly import Patience, settle
from .base import ClientBase
from .call import Asked, Item
from .calls import Messages, Planned, new_id, plan_chat, plan_generate, plan_render
from .mailbox import BlockingMailbox, WaitedInVain
from .options import ChatOptions, RequestOptions, Timeouts
from .results import Completion
from .streams import EventStream, Stream

R = TypeVar("R")
OnProgress = Callable[[p.Progress], object]


class Client(ClientBase):
    """Blocking access to a daemon. Thread-safe: any number of threads may call and iterate streams.

    Every method raises ConnectionFailed when no daemon answers, ConnectionLost when it goes away for good,
    RequestTimeout when a time-out runs out, ClientClosed after `close`, and the DaemonError subclass of the
    code when the daemon refuses; the docstrings name only what is special to a call.
    """

    # generation

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Unpack[RequestOptions]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[RequestOptions]
    ) -> Stream: ...
    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[RequestOptions]
    ) -> Completion | Stream:
        """Continue a text or a list of token ids; see RequestOptions and SamplingParams for the options.

        Raises InvalidParam (also before sending), ContextExceeded, UnknownModel, ModelLoadFailed, Overloaded,
        EngineLost, NumericError, DeadlineExceeded, SlowConsumer, ServerShutdown, ServerRestarted. An error in
        mid-generation has what came before it in `partial`.
        """
        return self._work(plan_generate(prompt, options), stream)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Completion: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]) -> Stream: ...
    def chat(self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]) -> Completion | Stream:
        """Answer a chat with the model's own template: Message objects, dicts of their fields, or one string.

        Raises what `generate` raises; InvalidParam also when the template refuses the messages.
        """
        return self._work(plan_chat(messages, options), stream)

    def cancel(self, request: str | Stream | Completion, *, anywhere: bool = False) -> None:
        """End a request, by its id or stream. Its reader sees the reason `cancelled`. Idempotent.

        `anywhere` ends requests of other clients by that id too. Raises Unauthorized without the role admin.
        """
        target = request if isinstance(request, str) else request.id
        self._ask(p.Cancel(id=new_id(), request=target, anywhere=anywhere), p.Ok)

    # text

    def tokenize(self, text: str, *, model: str = "", add_bos: bool = True, special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`. Raises UnknownModel."""
        message = p.Tokenize(id=new_id(), model=model, text=text, add_bos=add_bos, special_tokens=special_tokens)
        return self._ask(message, p.Tokenized).ids

    def render(
        self,
        messages: Messages,
        *,
        model: str = "",
        tools: Sequence[dict[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> p.Rendered:
        """Return text and ids of what a chat would send to the model. Raises UnknownModel, InvalidParam."""
        return self._ask(plan_render(messages, model, tools, template_args).message, p.Rendered)

    # the daemon

    def status(self) -> p.StatusReply:
        """Return the state of the daemon, its models, devices and requests."""
        return self._ask(p.Status(id=new_id()), p.StatusReply)

    def models(self) -> tuple[p.ModelInfo, ...]:
        """Return the models in the store and those loaded."""
        return self._ask(p.Models(id=new_id()), p.ModelsReply).models

    def plugins(self) -> tuple[p.PluginInfo, ...]:
        """Return every plugin with its state and why it was not chosen."""
        return self._ask(p.Plugins(id=new_id()), p.PluginsReply).plugins

    def load(self, model: str, *, keep_alive_s: float | None = None, on_progress: OnProgress | None = None) -> str:
        """Load a model; return when it is ready. Raises UnknownModel, ModelLoadFailed, Unauthorized."""
        message = p.Load(id=new_id(), model=model, keep_alive_s=keep_alive_s)
        return self._ask(message, p.Ok, on_progress, self._patient).detail

    def unload(self, model: str, *, force: bool = False) -> str:
        """Unload a model once its requests are done, or cancel them with `force`; say `unloaded` or `not loaded`."""
        return self._ask(p.Unload(id=new_id(), model=model, force=force), p.Ok, timeouts=self._patient).detail

    def traffic(self, model: str = "", *, clear: bool = False) -> p.TrafficReply:
        """Return the traffic record, of all models or one; `clear` forgets it. Raises Unauthorized."""
        return self._ask(p.Traffic(id=new_id(), model=model, clear=clear), p.TrafficReply)

    def metrics(self) -> str:
        """Return all metrics as Prometheus text."""
        return self._ask(p.Metrics(id=new_id()), p.MetricsReply).text

    def drain(self, timeout_s: float | None = None) -> str:
        """Make the daemon finish what runs, for at most `timeout_s`, and exit. Raises Unauthorized."""
        return self._ask(p.Drain(id=new_id(), timeout_s=timeout_s), p.Ok).detail

    def events(self, *, timeout: float | None = None) -> EventStream:
        """Return an endless iterator of snapshots and model events; it outlives restarts of the daemon.

        `timeout` bounds the seconds between two events; iterating raises RequestTimeout past it.
        """
        return EventStream(self, self._open(), timeout)

    # life

    def close(self) -> None:
        """Cancel what is in flight, here and at the daemon, and disconnect. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, planned: Planned, stream: bool) -> Completion | Stream:
        started = Stream(self, self._open(), planned)
        return started if stream else started.result()

    def _ask(
        self, message: Asked, kind: type[R], on_progress: OnProgress | None = None, timeouts: Timeouts | None = None
    ) -> R:
        mailbox: BlockingMailbox[Item] = BlockingMailbox()
        planned = Planned(message, timeouts)
        patience = Patience(timeouts or self.timeouts)
        driver = self._open()
        call = self.new_call(planned, mailbox.put)
        driver.submit(call)
        try:
            while True:
                arrival = mailbox.get(patience.remaining())
                patience.check(arrival.at, arrival.item)
                if (answer := settle(arrival.item, kind, on_progress)) is not None:
                    return answer
        except WaitedInVain:
            raise patience.ran_out() from None
        finally:
            driver.abandon(call)
