"""A daemon of a few lines for tests that want exact control over what is answered, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from inferd_client import protocol as p
from inferd_client.endpoints import Endpoints

Handler = Callable[["Router", str, bytes, p.Request], None]


class Router:
    """Two ROUTERs and an XPUB in a thread. Hello and Ping are answered; `handler` sees the rest."""

    def __init__(self, runtime: Path, handler: Handler, *, instance: str = "i1", max_frame: int = 1 << 20) -> None:
        self.instance = instance
        self.heartbeat_s = 5.0
        self.max_frame = max_frame
        self.answer_pings = True
        self.seen: list[p.Request] = []
        self._handler = handler
        self._endpoints = Endpoints.in_dir(runtime)
        self._context = zmq.Context()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def send(self, side: str, identity: bytes, reply: p.Reply) -> None:
        """Answer; only to be called from a handler."""
        self._sockets[side].send_multipart([identity, *p.encode(reply)])

    def of(self, kind: type) -> list:
        return [message for message in self.seen if isinstance(message, kind)]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        data, control = self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER)
        self.events = self._context.socket(zmq.XPUB)
        data.sndhwm = control.sndhwm = 0
        data.bind(self._endpoints.data)
        control.bind(self._endpoints.control)
        self.events.bind(self._endpoints.events)
        self._sockets = {"data": data, "control": control}
        poller = zmq.Poller()
        poller.register(data, zmq.POLLIN)
        poller.register(control, zmq.POLLIN)
        self._ready.set()
        try:
            while not self._stop.is_set():
                for sock, _ in poller.poll(20):
                    side = "data" if sock is data else "control"
                    identity, *frames = sock.recv_multipart()
                    decoder = p.data_decoder if side == "data" else p.control_decoder
                    self._handle(side, identity, p.decode(frames, decoder))
        except BaseException as error:
            self.failure = error
        finally:
            self._context.destroy(linger=0)

    def _handle(self, side: str, identity: bytes, message: p.Request) -> None:
        self.seen.append(message)
        if isinstance(message, p.Hello):
            self.send(side, identity, self.welcome(message))
        elif isinstance(message, p.Ping):
            if self.answer_pings:
                self.send(side, identity, p.Pong(nonce=message.nonce))
        else:
            self._handler(self, side, identity, message)

    def welcome(self, hello: p.Hello) -> p.Welcome:
        mine = hello.session is not None and hello.session.startswith(self.instance)
        return p.Welcome(
            major=p.MAJOR,
            minor=p.MINOR,
            version="test",
            instance=self.instance,
            session=hello.session if mine and hello.session else f"{self.instance}-token",
            role="admin",
            limits=p.Limits(max_frame=self.max_frame, max_queue=9, max_client_requests=9),
            heartbeat_s=self.heartbeat_s,
            resumed=mine,
        )


def words(router: Router, side: str, identity: bytes, message: p.Request) -> None:
    """Answer a generation with the words of its prompt; everything else with an empty answer of its kind."""
    if isinstance(message, p.Generate):
        start(router, identity, message)
        parts = (message.prompt or "").split()
        for seq, word in enumerate(parts):
            router.send("data", identity, p.Tokens(id=message.id, seq=seq, text=word, ids=(seq,)))
        router.send("data", identity, done(message.id, len(parts)))
    elif isinstance(message, p.Tokenize):
        router.send(side, identity, p.Tokenized(id=message.id, ids=list(message.text.encode())))
    elif isinstance(message, p.Status):
        router.send(side, identity, p.StatusReply(id=message.id, instance=router.instance))
    elif isinstance(message, p.Models):
        router.send(side, identity, p.ModelsReply(id=message.id, models=()))
    elif hasattr(message, "id"):
        router.send(side, identity, p.Ok(id=message.id))


def start(router: Router, identity: bytes, message: p.Generate) -> None:
    router.send("data", identity, p.Accepted(id=message.id, prompt_tokens=3, max_tokens=9))


def done(request_id: str, tokens: int, reason: p.FinishReason = "stop") -> p.Done:
    return p.Done(
        id=request_id,
        reason=reason,
        finish=(p.Finish(choice=0, reason=reason, seed=7),),
        usage=p.Usage(prompt_tokens=3, completion_tokens=tokens),
        timings=p.Timings(e2e_s=0.1),
    )
