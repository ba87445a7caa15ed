"""What one step runs, as plain arrays that can be sent to a rank, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferd.plugin.types import StepCounts
from inferd_client.protocol import SamplingParams, TokenLogprob  # at runtime: ranks decode these types

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferd.engine.request import Sequence


class Row(NamedTuple):
    """One sequence in a plan: which of its tokens run in this step."""

    seq: Sequence
    start: int
    """Position of the first token that runs (= tokens already in the cache)."""
    num_tokens: int
    drafts: tuple[int, ...] = ()
    """Draft tokens appended after the sequence's own last token; num_tokens counts them."""
    samples: bool = True
    """False for a prefill chunk that does not reach the last token."""


@dataclass(slots=True)
class Plan:
    """The decision of one scheduler step, in row order decode, verify, prefill."""

    rows: list[Row]
    counts: StepCounts
    preempted: list[Sequence] = field(default_factory=list)
    entered: list[Sequence] = field(default_factory=list)
    """Sequences that got an executor slot since the last plan."""
    left: list[int] = field(default_factory=list)
    """Slots given up since the last plan; they may be among the entered again."""
    num_steps: int = 1
    """Steps that the rows, all of them decoding, take in one call: each gives them a token."""
    lacks_room: bool = False
    """Rows are missing that would have taken the place of others, which a step in flight does not allow."""

    @property
    def may_be_followed(self) -> bool:
        """True when the next step may be planned unseen: the device chooses every token of this one by itself."""
        return not any(row.seq.asks_host or row.seq.matcher is not None for row in self.rows)

    @property
    def num_tokens(self) -> int:
        num_decode = self.counts.decode
        return num_decode + sum(row.num_tokens for row in self.rows[num_decode:])


class SlotInit(NamedTuple):
    """A sequence that entered: what the sampler must know of it from now on."""

    slot: int
    seed: int
    sampling: SamplingParams
    num_prompt: int
    tokens: list[int]
    """Prompt and any output from before a preemption."""
    eos_ids: tuple[int, ...]
    bad_word_ids: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Batch:
    """Flat, ragged arrays of one step. T tokens, B sequences, G groups, M blocks a table, R sampled rows.

    The arrays are views of the builder's fixed buffers, valid until its next `build`: an executor that
    reads them later copies. M is the longest table of this step; blocks behind a window read as 0.
    `leave` is applied before `enter`.
    """

    counts: StepCounts
    token_ids: NDArray[np.int32]  # [T] negative: the token that executor slot ~id got in the step before
    positions: NDArray[np.int32]  # [T]
    cu_seqlens: NDArray[np.int32]  # [B + 1]
    context_lens: NDArray[np.int32]  # [B]
    block_tables: NDArray[np.int32]  # [G, B, M]
    slots: NDArray[np.int64]  # [G, T]
    sample_rows: NDArray[np.int32]  # [R] rows of T that sample: 1 + drafts for each of sampling_seqs
    seq_slots: NDArray[np.int32]  # [B] executor slot of each sequence
    draft_lens: NDArray[np.int32]  # [B] drafts at the end of each sequence's rows; 0 = none
    sampling_seqs: NDArray[np.int32]  # [S] indices into B of sequences that sample, in row order
    masked_rows: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """[K] those of R whose sequence follows a grammar."""
    masks: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    """[K, vocab / 32] the tokens it allows: bit i of word w is token 32 w + i."""
    prompt_rows: tuple[tuple[int, int], ...] = ()
    """(index into B, wanted top) of sequences whose prompt rows need logprobs in this step."""
    num_steps: int = 1
    """As in the plan; block tables then reach as far, the other arrays are those of the first step."""
    enter: list[SlotInit] = field(default_factory=list)
    leave: list[int] = field(default_factory=list)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)

    @property
    def row_slots(self) -> NDArray[np.int32]:
        """Executor slot of each row of sample_rows [R]."""
        slots = self.seq_slots[self.sampling_seqs]
        return np.repeat(slots, self.draft_lens[self.sampling_seqs] + 1) if self.counts.verify else slots

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class RowOutput(NamedTuple):
    """What one sampling sequence got from a step."""

    ids: Seq[int]
    """Accepted drafts and the token sampled after them: 1 to k + 1 ids, or one for each of several steps.

    Empty: bad numerics."""
    logprobs: Seq[TokenLogprob] | None = None
    error: str = ""


class StepOutput(NamedTuple):
    """Outputs in the order of the batch's sampling sequences, and prompt logprobs by index into B.

    A sequence of `prompt_rows` whose rows are positions s..e-1 gets the logprobs of its prompt tokens
    s+1..min(e, num_prompt-1), in order: row p predicts token p + 1.
    """

    rows: list[RowOutput]
    prompt_logprobs: dict[int, list[TokenLogprob]]
    elapsed_s: float
    num_steps: int = 1
    """That were run."""
