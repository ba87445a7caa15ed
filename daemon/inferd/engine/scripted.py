"""A worker without a model: `python -m inferd.engine.scripted LINK SETTINGS`, for fakes and tests.

It speaks the same messages through the same loop as the real worker. Its script decides what it says
and how it fails; see `Script`. It imports no torch and no numpy.
"""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()

import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from inferd.engine.worker import Progress, main
from inferd.link import Charges, DeviceUse, ModelCard, SeqError, SeqOutput, SeqState, StepReport, StepStats
from inferd.load.errors import LoadError
from inferd.load.vocab_bytes import byte_vocabulary
from inferd_client.protocol import Code, TokenLogprob

if TYPE_CHECKING:
    from inferd.engine.settings import WorkerSettings
    from inferd.link import Submit

EOS = byte_vocabulary().eos_ids[0]
BLOCK = 16
STATES_EVERY_S = 0.5


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong with requests whose prompt contains `match`."""

    match: str
    kind: Literal["die", "segv", "hang", "nan", "silent", "slow_prefill", "huge"]
    """die, segv: the process ends (in prefill). hang: it stops stepping. nan: the request fails as
    numeric_error after one token. silent: never answered, the rest goes on. slow_prefill: `seconds` in
    state prefill. huge: 1,000 tokens a step without delay."""
    seconds: float = 3600.0
    after: int = 0
    """Tokens before a die or segv."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said to prompts that contain `match`."""

    match: str
    reply: str


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the engine behaves."""

    models: tuple[str, ...] = ("fake",)
    """Names the fake daemon offers; the first is its default."""
    size: int = 0
    """Bytes of each model's file, for the ledger."""
    reply: str | None = None
    """Text of every answer; None = the prompt said back. It repeats when EOS is ignored."""
    answers: tuple[Answer, ...] = ()
    """In place of `reply`; of several that match, the last, so that a chat can go on."""
    delay_s: float = 0.0
    """Time of a step."""
    context: int = 4096
    max_sequences: int = 8
    chunk: int = 512
    """Prompt tokens a step."""
    load_s: float = 0.0
    die_at_load: int = 0
    """The first so many starts of a model die while loading."""
    fail_at_load: int = 0
    """The first so many starts report a load error."""
    kv_bytes: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True, eq=False)
class _Row:
    """One choice of one request."""

    submit: Submit
    choice: int
    answer: list[int]
    fault: Fault | None
    num_computed: int = 0
    num_output: int = 0
    first_scheduled: float | None = None
    done: bool = False
    prefill_until: float = 0.0

    @property
    def in_prefill(self) -> bool:
        return self.num_computed < len(self.submit.prompt)


@dataclass(slots=True)
class ScriptedEngine:
    """Answers every request by the script, first come first served."""

    script: Script
    waiting: deque[_Row] = field(default_factory=deque)
    running: list[_Row] = field(default_factory=list)
    errors: list[SeqError] = field(default_factory=list)
    states_due: float = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.errors)

    def submit(self, submit: Submit) -> None:
        text = bytes(token for token in submit.prompt if token < 256).decode(errors="replace")
        fault = next((fault for fault in self.script.faults if fault.match in text), None)
        words = self._words(text)
        answer = [*words.encode(), *([] if submit.sampling.ignore_eos else [EOS])]
        self.waiting += [_Row(submit, choice, answer, fault) for choice in range(submit.sampling.n)]

    def _words(self, prompt: str) -> str:
        for answer in reversed(self.script.answers):
            if answer.match in prompt:
                return answer.reply
        return prompt if self.script.reply is None else self.script.reply

    def abort(self, key: str, choice: int | None = None) -> None:
        for row in (*self.waiting, *self.running):
            if row.submit.key == key and choice in (None, row.choice):
                row.done = True
        self._drop_done()

    def idle(self) -> None:
        """There is nothing to measure."""

    def watch(self, file: int) -> None:
        """Every step is over at once."""

    def use(self) -> DeviceUse:
        return DeviceUse()

    def step(self) -> StepReport:
        """Advance every running request by one token, or one chunk of its prompt."""
        now = time.monotonic()
        if self.script.delay_s:
            time.sleep(self.script.delay_s)
        worked = time.monotonic() - now
        self._expire(now)
        while self.waiting and len(self.running) < self.script.max_sequences:
            self.running.append(self.waiting.popleft())
        outputs: list[SeqOutput] = []
        prefilled = 0
        for row in self.running:
            if row.first_scheduled is None:
                row.first_scheduled = now
                row.prefill_until = now + (row.fault.seconds if row.fault and row.fault.kind == "slow_prefill" else 0)
            if row.in_prefill:
                prefilled += self._prefill(row, now)
            if not row.in_prefill:
                outputs += self._decode(row)
        self._drop_done()
        errors, self.errors = self.errors, []
        if not outputs and not prefilled:
            time.sleep(0.005)
        return StepReport(
            outputs=outputs,
            errors=errors,
            states=self._states(now),
            stats=self._stats(now, prefilled, len(outputs)),
            charges=self._charges(worked, outputs),
        )

    @staticmethod
    def _charges(seconds: float, outputs: list[SeqOutput]) -> Charges:
        """Let the outputs share the time of a step."""
        charged: dict[str, float] = {}
        for output in outputs:
            charged[output.key] = charged.get(output.key, 0.0) + seconds / len(outputs)
        return Charges(decode=charged)

    def _prefill(self, row: _Row, now: float) -> int:
        fault = row.fault.kind if row.fault is not None and not row.fault.after else ""
        if fault == "die":
            os._exit(9)
        if fault == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            time.sleep(row.fault.seconds if row.fault else 0)
        left = len(row.submit.prompt) - row.num_computed
        room = left - 1 if now < row.prefill_until or fault == "silent" else left
        count = min(self.script.chunk, room)
        row.num_computed += count
        return count

    def _decode(self, row: _Row) -> list[SeqOutput]:
        """Say the next token, or many of a huge answer; note the end."""
        fault = row.fault
        if fault is not None and fault.after and row.num_output >= fault.after:
            os.kill(os.getpid(), signal.SIGSEGV if fault.kind == "segv" else signal.SIGKILL)
        if fault is not None and fault.kind == "nan" and row.num_output:
            self.errors.append(SeqError(key=row.submit.key, code=Code.NUMERIC_ERROR, message="logits are not finite"))
            self.abort_all(row.submit.key)
            return []
        output = self._next(row, 1000 if fault is not None and fault.kind == "huge" else 1)
        row.done = output.finish is not None
        return [output]

    def _next(self, row: _Row, count: int) -> SeqOutput:
        sampling, ids = row.submit.sampling, list[int]()
        limit = sampling.max_tokens or self.script.context
        finish, stop_token = None, None
        stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else row.submit.eos_ids)}
        while len(ids) < count and finish is None:
            token = row.answer[row.num_output % len(row.answer)] if row.answer else EOS
            ids.append(token)
            row.num_output += 1
            if token in stops and row.num_output >= sampling.min_tokens:
                finish, stop_token = "stop", token
            elif row.num_output >= limit:
                finish = "length"
        first = row.num_output == len(ids)
        return SeqOutput(
            key=row.submit.key,
            choice=row.choice,
            ids=tuple(ids),
            finish=finish,
            stop_token=stop_token,
            logprobs=None
            if sampling.logprobs is None
            else tuple(TokenLogprob(token=i, logprob=0.0, rank=1) for i in ids),
            first_scheduled=row.first_scheduled if first else None,
        )

    def abort_all(self, key: str) -> None:
        for row in self.running:
            row.done = row.done or row.submit.key == key

    def _expire(self, now: float) -> None:
        for row in self.waiting:
            if row.submit.queue_deadline is not None and now > row.submit.queue_deadline:
                self._too_late(row, "queue_timeout_ms")
        for row in (*self.waiting, *self.running):
            if row.submit.deadline is not None and now > row.submit.deadline:
                self._too_late(row, "deadline_ms")
        self._drop_done()

    def _too_late(self, row: _Row, field_name: str) -> None:
        if row.choice == 0 and not row.done:
            key, code = row.submit.key, Code.DEADLINE_EXCEEDED
            self.errors.append(SeqError(key=key, code=code, message="out of time", field=field_name))
        row.done = True

    def _drop_done(self) -> None:
        if any(row.done for row in self.waiting):
            self.waiting = deque(row for row in self.waiting if not row.done)
        self.running = [row for row in self.running if not row.done]

    def _states(self, now: float) -> list[SeqState]:
        if now < self.states_due or not (self.waiting or self.running):
            return []
        self.states_due = now + STATES_EVERY_S
        waiting = [SeqState(key=r.submit.key, state="waiting", done=0, total=0, reason="slots") for r in self.waiting]
        return waiting + [
            SeqState(
                key=row.submit.key,
                state="prefill" if row.in_prefill else "decode",
                done=row.num_computed,
                total=len(row.submit.prompt),
            )
            for row in self.running
        ]

    def _stats(self, now: float, prefilled: int, decoded: int) -> StepStats:
        used = sum((row.num_computed + row.num_output) // BLOCK + 1 for row in self.running)
        total = self.script.max_sequences * (self.script.context // BLOCK + 1)
        prefilling = sum(row.in_prefill for row in self.running)
        return StepStats(
            now=now,
            prefill_s=0.0,
            decode_s=self.script.delay_s,
            running=len(self.running),
            waiting=len(self.waiting),
            prefilling=prefilling,
            decoding=len(self.running) - prefilling,
            verifying=0,
            preempted=0,
            kv_total=total,
            kv_free=total - used,
            kv_cached=0,
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            prefill_tokens=prefilled,
            decode_tokens=decoded,
            drafted=0,
            accepted=0,
        )


def build(settings: WorkerSettings, progress: Progress) -> tuple[ScriptedEngine, ModelCard]:
    """Load, or fail to, as the script says."""
    script = msgspec.convert(settings.script, Script)
    steps = max(1, int(script.load_s / 0.05))
    for step in range(steps):
        progress("reading weights", step, steps)
        time.sleep(script.load_s / steps)
    if settings.attempt < script.die_at_load:
        os._exit(13)
    if settings.attempt < script.fail_at_load:
        raise LoadError("model.gguf: tensor blk.0 is missing (scripted)")
    vocabulary = byte_vocabulary()
    card = ModelCard(
        architecture="scripted",
        dtype="none",
        device="cpu",
        vocab_size=len(vocabulary.pieces),
        context=script.context,
        eos_ids=vocabulary.eos_ids,
        pieces=vocabulary.pieces,
        special_ids=tuple(vocabulary.special_ids),
        plugins={},
        manifest=(),
        exactness="token",
        weight_bytes=script.size,
        kv_bytes=script.kv_bytes,
    )
    return ScriptedEngine(script), card


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build))
