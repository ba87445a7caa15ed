"""The client without its sockets: sessions, calls in flight, retries, liveness.

Nothing here does I/O or reads a clock. The driver feeds it what happened (`connected`, `disconnected`,
`received`, `tick`) with the time, and carries out the actions it takes away. One thread drives it.

Control speaks first: its welcome brings the session token that the data socket then presents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from . import protocol as p
from .call import Call, Channel
from .errors import (
    BadFrame,
    ClientClosed,
    ConnectionFailed,
    ConnectionLost,
    DaemonError,
    DuplicateRequest,
    InferdError,
    InvalidParam,
    ProtocolMismatch,
    ServerRestarted,
    from_answer,
)
from .link import Link

TERMINAL = (
    p.Done,
    p.Error,
    p.Tokenized,
    p.Rendered,
    p.Ok,
    p.StatusReply,
    p.ModelsReply,
    p.PluginsReply,
    p.TrafficReply,
    p.MetricsReply,
)


@dataclass(frozen=True, slots=True)
class Action:
    """Something the driver has to do to a socket. `reopen` closes it first and drops what it had queued."""

    kind: Literal["open", "reopen", "send"]
    channel: Channel
    frames: list[bytes] | None = None


class Core:
    """State machine of one client."""

    def __init__(self, name: str, remedy: str) -> None:
        self.name = name
        self._remedy = remedy
        self.links = {channel: Link(channel) for channel in Channel}
        self.session: str | None = None
        self.instance: str | None = None
        self.welcome: p.Welcome | None = None
        self.calls: dict[str, Call] = {}
        """By wire id: everything unanswered."""
        self.actions: deque[Action] = deque()
        self._calls_due = 0.0
        """When a call next needs a look; 0 after anything that may concern calls which wait."""
        self._fatal: InferdError | None = None

    @property
    def is_welcomed(self) -> bool:
        """Whether the daemon has answered this client before."""
        return self.welcome is not None

    # what the application asks

    def submit(self, call: Call, now: float) -> None:
        """Take a call; its answers go to its sink, the last of them or an exception ends it."""
        call.created, self._calls_due = now, 0.0
        if self._fatal is not None:
            call.sink(self._fatal)
            return
        if call.wire_id in self.calls:
            call.sink(DuplicateRequest(f"request id {call.message.id!r} is in use", request_id=call.message.id))
            return
        if isinstance(call.message, p.Cancel):
            self._aim_cancel(call, call.message, now)
        self.calls[call.wire_id] = call
        self._want(Channel.CONTROL, now)
        self._want(call.channel, now)
        self._try_send(call, now)

    def _aim_cancel(self, call: Call, cancel: p.Cancel, now: float) -> None:
        """Point a cancel at the current try of its request; one that is not at the daemon ends here."""
        for target in list(self.calls.values()):
            if target.message.id == cancel.request and isinstance(target.message, p.Generate):
                call.message = msgspec.structs.replace(cancel, request=target.wire_id)
                if not target.sent:
                    self._forget(target)
                    target.sink(_cancelled(target.message))

    def abandon(self, call: Call, now: float) -> None:
        """End a call from this side: nothing more is delivered, and the daemon is told if it knows of it."""
        if call.ended:
            return
        self._forget(call)
        if call.sent and isinstance(call.message, p.Generate):
            self._send_cancel(call.wire_id, now)

    def close(self, now: float) -> None:
        """Cancel and fail everything; the driver still sends what `actions` then holds."""
        for call in list(self.calls.values()):
            self.abandon(call, now)
            call.sink(ClientClosed("the client was closed"))
        self._fatal = ClientClosed("the client is closed")

    # what the sockets report

    def connected(self, channel: Channel, now: float) -> None:
        """The transport of a socket is up, for the first time or again."""
        self._calls_due = 0.0
        link = self.links[channel]
        link.lost(now)
        link.attached = True
        self._say_hello(link, now)

    def disconnected(self, channel: Channel, now: float) -> None:
        self._calls_due = 0.0
        self.links[channel].lost(now)

    def received(self, channel: Channel, frames: Sequence[bytes], now: float) -> None:
        """Take one message of the daemon."""
        link = self.links[channel]
        link.heard(now)
        try:
            answer = p.decode(frames, p.answer_decoder, max_frame=2**31)
        except p.FrameError as error:
            self._undecodable(frames, error, now)
            return
        if isinstance(answer, p.Welcome | p.Error):
            self._calls_due = 0.0
        if isinstance(answer, p.Welcome):
            self._welcomed(link, answer, now)
        elif isinstance(answer, p.Pong):
            pass
        elif isinstance(answer, p.Error) and answer.id is None:
            self._refused(link, answer, now)
        elif (call := self.calls.get(answer.id or "")) is not None:
            self._answered(call, answer, now)
        elif isinstance(answer, p.Accepted):
            self._send_cancel(answer.id, now)

    # the passing of time

    def overslept(self, seconds: float) -> None:
        """This process was paused: what the daemon said meanwhile has still to be read."""
        for link in self.links.values():
            link.overslept(seconds)

    def tick(self, now: float) -> float:
        """Do what is due; return when to call again at the latest."""
        for link in self.links.values():
            self._tend(link, now)
        if now >= self._calls_due:
            self._calls_due = self._tend_calls(now)
        return min([self._calls_due, *(link.next_event() for link in self.links.values())])

    def _tend_calls(self, now: float) -> float:
        """Send what may go, give up what waited too long; return when there is more of that to do."""
        due = float("inf")
        for call in list(self.calls.values()):
            if not call.sent:
                self._try_send(call, now)
            if not call.ended:
                due = min(due, self._tend_call(call, now))
        return due

    def _tend(self, link: Link, now: float) -> None:
        if link.silent(now) or link.hello_overdue(now):
            if not link.welcomed:
                link.back_off()
            self._calls_due = 0.0
            link.lost(now)
            self.actions.append(Action("reopen", link.channel))
        elif link.ping_due(now):
            link.pinged(now)
            self._send(link, p.Ping(), now)

    def _tend_call(self, call: Call, now: float) -> float:
        """Return when a call is to be looked at again; fail it if it has waited too long for a connection."""
        if not call.sent and now < call.not_before:
            return call.not_before
        link = self.links[call.channel]
        if link.welcomed:
            return float("inf")
        patience = call.timeouts.reconnect if call.sent else call.timeouts.connect
        end = max(link.since, call.created, call.not_before) + patience
        if now < end:
            return end
        if call.sent:
            self._fail(call, ConnectionLost("the daemon went away and did not come back"), now)
        else:
            self._fail(call, ConnectionFailed(f"no answer from the daemon; {self._remedy}"), now)
        return now

    # hello and welcome

    def _want(self, channel: Channel, now: float) -> None:
        link = self.links[channel]
        if not link.wanted:
            link.wanted, link.since = True, now
            self.actions.append(Action("open", channel))

    def _say_hello(self, link: Link, now: float) -> None:
        control_first = link.channel is Channel.DATA and not self.links[Channel.CONTROL].welcomed
        if link.attached and not control_first:
            link.said_hello(now)
            self._send(link, p.Hello(client=self.name, session=self.session), now)

    def _welcomed(self, link: Link, welcome: p.Welcome, now: float) -> None:
        old_session, old_instance = self.session, self.instance
        self.session, self.instance, self.welcome = welcome.session, welcome.instance, welcome
        link.was_welcomed(now, welcome.heartbeat_s)
        if old_instance not in (None, welcome.instance):
            self._daemon_restarted(now)
        elif old_session not in (None, welcome.session):
            self._session_lost(now)
        else:
            self._resumed(link.channel, now)
        if link.channel is Channel.CONTROL or old_session != welcome.session:
            self._say_hello_elsewhere(link, now, force=old_session != welcome.session)
        for call in list(self.calls.values()):
            self._try_send(call, now)

    def _say_hello_elsewhere(self, link: Link, now: float, *, force: bool) -> None:
        other = self.links[Channel.DATA if link.channel is Channel.CONTROL else Channel.CONTROL]
        if force or not other.welcomed:
            self._say_hello(other, now)

    def _daemon_restarted(self, now: float) -> None:
        message = "the daemon was restarted; what it had in flight is gone"
        for call in [call for call in self.calls.values() if call.sent]:
            if call.repeatable:
                call.sent = False
            else:
                error = ServerRestarted(message, retry_safe=not call.has_output, request_id=call.message.id)
                self._fail(call, error, now)

    def _session_lost(self, now: float) -> None:
        """The same daemon no longer knows our session: it has dropped what we had there."""
        for call in [call for call in self.calls.values() if call.sent]:
            if call.has_output:
                self._fail(call, ConnectionLost("the session expired at the daemon"), now)
            else:
                call.sent = False

    def _resumed(self, channel: Channel, now: float) -> None:
        """Ask again for what may not have arrived. The daemon refuses an id it already works on."""
        for call in self.calls.values():
            if call.sent and call.channel is channel and not call.has_output:
                call.sent, call.resent = False, True

    def _refused(self, link: Link, error: p.Error, now: float) -> None:
        """An error that names no request: about the connection itself."""
        if error.code is p.Code.PROTOCOL_MISMATCH:
            self._mismatch(ProtocolMismatch(error.message), now)
        elif not link.welcomed:
            for call in [call for call in self.calls.values() if not call.sent]:
                call.tries += 1
                self._fail(call, from_answer(error), now)
        elif error.code is p.Code.UNAUTHORIZED:
            self._greet_anew(link, now)

    # answers

    def _answered(self, call: Call, answer: p.Answer, now: float) -> None:
        if isinstance(answer, p.Error):
            self._failed_there(call, answer, now)
        elif isinstance(answer, p.Tokens):
            self._tokens(call, answer, now)
        else:
            call.sink(answer)
            if isinstance(answer, TERMINAL):
                self._forget(call)

    def _failed_there(self, call: Call, answer: p.Error, now: float) -> None:
        if answer.code is p.Code.DUPLICATE_REQUEST and call.resent:
            return
        if answer.code is p.Code.UNAUTHORIZED and not call.resent and not self._lacks_role(call):
            call.sent, call.resent = False, True
            self._greet_anew(self.links[call.channel], now)
            return
        self._fail(call, from_answer(answer), now)

    def _lacks_role(self, call: Call) -> bool:
        is_user = self.welcome is not None and self.welcome.role == "user"
        message = call.message
        clears = isinstance(message, p.Traffic) and message.clear
        return is_user and (clears or isinstance(message, p.Load | p.Unload | p.Drain))

    def _greet_anew(self, link: Link, now: float) -> None:
        """The daemon does not know this connection, as it forgets those that are silent for long."""
        link.lost(now)
        self.actions.append(Action("reopen", link.channel))

    def _tokens(self, call: Call, answer: p.Tokens, now: float) -> None:
        if answer.seq < call.next_seq:
            return
        if answer.seq > call.next_seq:
            self._send_cancel(call.wire_id, now)
            lost = f"answers {call.next_seq} to {answer.seq - 1} of the request were lost"
            self._fail(call, ConnectionLost(lost), now)
            return
        call.next_seq += 1
        call.sink(answer)

    def _undecodable(self, frames: Sequence[bytes], error: p.FrameError, now: float) -> None:
        """A reply kind of a newer minor is skipped; one that should be known fails its call."""
        if error.code is p.Code.PROTOCOL_MISMATCH:
            self._mismatch(ProtocolMismatch(str(error)), now)
            return
        call = self.calls.get(p.request_id_of(frames) or "")
        if call is not None and error.field != "type":
            self._fail(call, BadFrame(f"an answer could not be decoded: {error}"), now)

    def _mismatch(self, error: ProtocolMismatch, now: float) -> None:
        self._fatal = error
        for call in list(self.calls.values()):
            self._fail(call, error, now)

    # sending

    def _try_send(self, call: Call, now: float) -> None:
        link = self.links[call.channel]
        if call.sent or call.ended or now < call.not_before or not link.welcomed:
            return
        try:
            frames = p.encode(call.wire_message())
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # half a character, foreign objects
            self._refuse_here(call, f"the request cannot be encoded: {error}")
            return
        limit = self.welcome.limits.max_frame if self.welcome else p.MAX_FRAME
        if len(frames[-1]) > limit:
            self._refuse_here(call, f"the request has {len(frames[-1])} bytes, the daemon takes {limit}", limit)
            return
        call.sent = True
        call.tries += not call.resent
        link.last_out = now
        self.actions.append(Action("send", link.channel, frames))

    def _refuse_here(self, call: Call, message: str, limit: int | None = None) -> None:
        self._forget(call)
        call.sink(InvalidParam(message, limit=limit, request_id=call.message.id))

    def _send(self, link: Link, message: p.Hello | p.Ping | p.Cancel, now: float) -> None:
        link.last_out = now
        self.actions.append(Action("send", link.channel, p.encode(message)))

    def _send_cancel(self, wire_id: str, now: float) -> None:
        if self.links[Channel.CONTROL].welcomed:
            cancel = p.Cancel(id=f"cancel {wire_id}"[: p.Caps.ID_CHARS], request=wire_id)
            self._send(self.links[Channel.CONTROL], cancel, now)

    # endings

    def _fail(self, call: Call, error: InferdError, now: float) -> None:
        """End a call with an error, or plan another try if its policy says so."""
        self._forget(call)
        if not self._may_retry(call, error):
            call.sink(error)
            return
        assert isinstance(error, DaemonError)
        wait = call.plan_retry(now, error.retry_after)
        call.ended = False
        self.calls[call.wire_id] = call
        call.sink(p.Progress(id=call.message.id, state="waiting", reason=f"{error.code}: new try in {wait:.1f} s"))
        self._try_send(call, now)

    def _may_retry(self, call: Call, error: InferdError) -> bool:
        if not isinstance(error, DaemonError) or error.code not in call.retry.codes:
            return False
        wanted = error.retry_safe or error.retry_after is not None
        return wanted and not call.has_output and call.tries < call.retry.tries

    def _forget(self, call: Call) -> None:
        call.ended = True
        self.calls.pop(call.wire_id, None)


def _cancelled(request: p.Generate) -> p.Done:
    """Return the end of a request that was cancelled before the daemon had it."""
    finish = tuple(p.Finish(choice=i, reason="cancelled") for i in range(request.sampling.n))
    usage = p.Usage(prompt_tokens=0, completion_tokens=0)
    return p.Done(id=request.id, reason="cancelled", finish=finish, usage=usage, timings=p.Timings())
