"""Changes to logits that requests ask for, before temperature, in vLLM's order:
allowed ids, bad words, min_tokens, logit_bias, penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferd.engine.batch import SlotInit

_OUT = float("-inf")


@dataclass(slots=True)
class SlotEdits:
    """What one sequence changes; all empty for most."""

    allowed: torch.Tensor | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    blocked: torch.Tensor | None = None
    """Ids that would end the output before min_tokens."""
    min_tokens: int = 0
    bias_ids: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    tokens: list[int] = field(default_factory=list)
    """Output so far; kept for bad words only."""

    @staticmethod
    def of(init: SlotInit, device: str) -> SlotEdits | None:
        """Return the edits of a sequence that enters, None when it asks for none."""
        sampling = init.sampling
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(init.eos_ids))
        edits = SlotEdits(bad_words=init.bad_word_ids)
        if sampling.allowed_token_ids is not None:
            edits.allowed = torch.tensor(sampling.allowed_token_ids, device=device)
        if sampling.min_tokens > 0 and stops:
            edits.min_tokens = sampling.min_tokens
            edits.blocked = torch.tensor(sorted(stops), device=device)
        if sampling.logit_bias:
            edits.bias_ids = torch.tensor(list(sampling.logit_bias), device=device)
            edits.bias = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32, device=device)
        if init.bad_word_ids:
            edits.tokens = init.tokens[init.num_prompt :]
        wanted = (edits.allowed, edits.blocked, edits.bias_ids)
        return edits if edits.bad_words or any(w is not None for w in wanted) else None

    def apply(self, logits: torch.Tensor, num_output: int, drafts: Sequence[int]) -> None:
        """Change one row [vocab] in place; `drafts` stand between the known output and this row."""
        if self.allowed is not None:
            kept = logits[self.allowed]
            logits.fill_(_OUT)
            logits[self.allowed] = kept
        for token in self.banned(drafts):
            logits[token] = _OUT
        if self.blocked is not None and num_output < self.min_tokens:
            logits[self.blocked] = _OUT
        if self.bias_ids is not None and self.bias is not None:
            logits[self.bias_ids] += self.bias

    def banned(self, drafts: Sequence[int]) -> list[int]:
        """Return the tokens that would complete a bad word, counting output tokens only."""
        if not self.bad_words:
            return []
        output = [*self.tokens, *drafts]
        return [word[-1] for word in self.bad_words if word and _ends_with(output, word[:-1])]


def _ends_with(output: list[int], prefix: tuple[int, ...]) -> bool:
    return len(prefix) <= len(output) and tuple(output[len(output) - len(prefix) :]) == prefix


def apply_penalties(
    logits: torch.Tensor,
    counts: torch.Tensor,
    in_prompt: torch.Tensor,
    *,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Apply penalties [R] to logits [R, vocab] in place.

    Repetition (CTRL paper, section 4.1) over prompt and output; frequency and presence over output.
    """
    in_output = counts > 0
    factor = repetition.unsqueeze(1)
    penalised = torch.where(logits > 0, logits / factor, logits * factor)
    torch.where(in_prompt | in_output, penalised, logits, out=logits)
    logits -= frequency.unsqueeze(1) * counts
    logits -= presence.unsqueeze(1) * in_output
