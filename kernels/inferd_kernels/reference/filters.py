"""min_p, top_k and top_p on rows of logits already divided by the temperature.

Definitions and order are vLLM's: min_p against the most likely token; then the k highest logits, ties
with the last one kept; then the smallest set, most likely first and lowest id first among equals, whose
probability reaches p (renormalised over what is left). Probabilities are summed as whole numbers
(`fixed_weights`), so that the set depends on no order of summation.
"""

from __future__ import annotations

import torch

from inferd_kernels.reference.noise import fixed_weights

PROBE = 1024
"""Top-p looks at this many tokens before it sorts the whole vocabulary."""
_OUT = float("-inf")


def apply_min_p(logits: torch.Tensor, log_min_p: torch.Tensor) -> None:
    """Remove tokens less likely than min_p [R], given by its logarithm, times the most likely one; in place."""
    threshold = logits.amax(-1, keepdim=True) + log_min_p.unsqueeze(1)
    logits.masked_fill_(logits < threshold, _OUT)


def apply_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """Keep the top_k [R] highest logits of each row (0 = all); in place."""
    vocab = logits.shape[-1]
    wanted = top_k.clamp(max=vocab)
    highest = logits.topk(max(1, int(wanted.max())), dim=-1).values
    threshold = highest.gather(1, (wanted - 1).clamp(min=0).unsqueeze(1))
    threshold = threshold.masked_fill((wanted == 0).unsqueeze(1), _OUT)
    logits.masked_fill_(logits < threshold, _OUT)


def apply_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> None:
    """Keep the nucleus of probability top_p [R] of each row (1 = all); in place."""
    weights = fixed_weights(logits)
    wanted = (top_p.double() * weights.sum(-1).double()).to(torch.int64)
    wanted = wanted.masked_fill_(top_p >= 1, 0).unsqueeze(1)
    count, last = _nucleus(logits, weights, wanted, min(PROBE, logits.shape[-1]))
    tied = logits == last
    above = (logits > last).sum(-1, keepdim=True)
    keep_tied = tied & (tied.cumsum(-1) <= count - above)
    logits.masked_fill_(~((logits > last) | keep_tied) & (top_p < 1).unsqueeze(1), _OUT)


def _nucleus(
    logits: torch.Tensor, weights: torch.Tensor, wanted: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the size [R, 1] of each nucleus and the logit [R, 1] of its last token."""
    highest = logits.topk(width, dim=-1)
    total = weights.gather(1, highest.indices).cumsum(-1)
    if width < logits.shape[-1] and bool((total[:, -1:] < wanted).any()):
        return _nucleus(logits, weights, wanted, logits.shape[-1])
    count = ((total < wanted).sum(-1, keepdim=True) + 1).clamp(max=width)
    return count, highest.values.gather(1, count - 1)
