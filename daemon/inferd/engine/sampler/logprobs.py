"""Log-probabilities of the model itself: log-softmax of the raw logits, before any penalty or filter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inferd_client.protocol import TokenLogprob


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Report tokens[i] of row i, with its rank and the tops[i] most likely tokens.

    A rank is 1 + the number of likelier tokens, so that equals share the better one.
    """
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > chosen).sum(-1) + 1
    count = min(max(tops, default=0), logits.shape[-1])
    highest = logprobs.topk(count, dim=-1)
    return [
        TokenLogprob(token=token, logprob=logprob, rank=rank, top=tuple(zip(ids[:top], values[:top], strict=True)))
        for token, logprob, rank, ids, values, top in zip(
            tokens,
            chosen.squeeze(1).tolist(),
            ranks.tolist(),
            highest.indices.tolist(),
            highest.values.tolist(),
            tops,
            strict=True,
        )
    ]
