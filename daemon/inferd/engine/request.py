"""The unit of scheduling: one choice of one request. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.grammar.matcher import Matcher
    from inferd.plugin.contracts import BlockTables
    from inferd_client.protocol import FinishReason, SamplingParams, TokenLogprob


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and output of one choice, and how far its KV is computed."""

    key: int
    """Unique in this worker; names the sequence to KV manager, drafter and executor."""
    request: str
    choice: int
    client: str
    tokens: list[int]
    """Prompt, then output."""
    num_prompt: int
    sampling: SamplingParams
    seed: int
    """Of this choice: the request's seed + choice."""
    max_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    """Ids that end it: EOS unless ignored, and the request's own stop_token_ids."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    queue_deadline: float | None = None
    leader: Sequence | None = None
    """For n > 1: choice 0, whose prefill the others wait for so that they hit its prefix."""

    phase: Phase = Phase.WAITING
    num_computed: int = 0
    """Tokens whose KV is in the cache."""
    num_inflight: int = 0
    """Tokens of the steps that are running."""
    num_sampling: int = 0
    """Tokens that the running steps are choosing for it: they count, but nobody knows them yet."""
    tables: BlockTables | None = None
    capacity: int = 0
    """Tokens its blocks have room for."""
    slot: int = -1
    """Row of the executor's per-sequence state while running; -1 = none."""
    num_cached: int = 0
    """Prompt tokens served by the prefix cache at first admission."""
    preemptions: int = 0
    made_way: bool = False
    """Others were preempted to let it in: that is done once."""
    skips: int = 0
    """Smaller sequences admitted ahead of this one."""
    passed: int = 0
    """Prompt tokens of others that were read since it had a chunk, while it was the oldest being read."""
    drafted: int = 0
    accepted: int = 0
    first_scheduled: float | None = None
    reusable: bool = True
    """False: its numerics were bad, so its cached prefixes are forgotten when it is released."""
    matcher: Matcher | None = None
    """How far the output has come in its grammar; None = it follows none, or that is not compiled yet."""
    wait_reason: str = ""
    finish: FinishReason | None = None
    stop_token: int | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    asks_host: bool = field(init=False)
    """Its tokens are chosen or reported with the host's help, so no step may follow unseen."""

    def __post_init__(self) -> None:
        self.asks_host = bool(self.bad_word_ids) or asks_host(self.sampling)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_coming(self) -> int:
        """Its tokens once the running steps are done."""
        return len(self.tokens) + self.num_sampling

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_left(self) -> int:
        """Its tokens that no running step computes either."""
        return len(self.tokens) - self.num_computed - self.num_inflight

    @property
    def limit(self) -> int:
        """Most tokens this sequence can ever hold KV for (the last sampled one needs none)."""
        return self.num_prompt + self.max_tokens - 1

    @property
    def needs_prompt_rows(self) -> bool:
        """Prompt logprobs need the logits of every prompt row, so no prefix hit may skip them."""
        return self.sampling.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt


def is_penalised(sampling: SamplingParams) -> bool:
    """Say whether earlier tokens count in the choice of the next."""
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def asks_host(sampling: SamplingParams) -> bool:
    """Say whether the host takes part in choosing a token: it edits logits, counts earlier tokens or reports them."""
    return (
        sampling.logprobs is not None
        or sampling.prompt_logprobs is not None
        or sampling.allowed_token_ids is not None
        or bool(sampling.logit_bias)
        or sampling.min_tokens > 0
        or is_penalised(sampling)
    )
