"""Which token a row must get: sampling one row at a time, in plain Python, from its logits alone.

Only the noise is the engine's own (its distribution is tested apart): given the same noise, the choice
must be the very same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from inferd.engine.offline import Results
from inferd.link import Submit
from inferd_kernels.reference.noise import gumbel, row_keys
from tests.equivalence.rig import Row

OUT = -math.inf


def choose(row: Row, request: Submit) -> int:
    """Return the token that the row's sequence gets after `row.context`."""
    params = request.sampling
    output = row.context[row.num_prompt :]
    logits = edited([float(x) for x in row.logits], request, output)
    logits = penalised(logits, request, row.context[: row.num_prompt], output)
    if params.temperature > 0:
        logits = [x / params.temperature for x in logits]
        kept = support(logits, min_p=params.min_p, top_k=params.top_k, top_p=params.top_p)
        noise = noise_of(params.seed or 0, row.choice, len(row.context), len(logits))
        logits = [x + g if token in kept else OUT for token, (x, g) in enumerate(zip(logits, noise, strict=True))]
    best = max(logits)
    return next(token for token, value in enumerate(logits) if value == best)


def edited(logits: list[float], request: Submit, output: Sequence[int]) -> list[float]:
    """Apply what names tokens: allowed ids, bad words, ends before min_tokens, biases."""
    params = request.sampling
    banned = {word[-1] for word in request.bad_word_ids if tuple(output[len(output) - len(word) + 1 :]) == word[:-1]}
    if len(output) < params.min_tokens:
        banned |= set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.eos_ids))
    allowed = params.allowed_token_ids
    kept = [OUT if t in banned or (allowed and t not in allowed) else x for t, x in enumerate(logits)]
    return [x + params.logit_bias.get(token, 0.0) for token, x in enumerate(kept)]


def penalised(logits: list[float], request: Submit, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Repetition over prompt and output, presence and frequency over output only."""
    params, counts = request.sampling, Counter(output)
    out = []
    for token, value in enumerate(logits):
        if token in counts or token in prompt:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        out.append(value - params.frequency_penalty * counts[token] - params.presence_penalty * (token in counts))
    return out


def support(logits: Sequence[float], *, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> set[int]:
    """Return the tokens that min_p, then top_k, then top_p leave."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = [token for token in order if logits[token] > OUT]
    peak = logits[order[0]]
    order = [token for token in order if math.exp(logits[token] - peak) >= min_p]
    if top_k:
        order = [token for token in order if logits[token] >= logits[order[min(top_k, len(order)) - 1]]]
    total = sum(math.exp(logits[token] - peak) for token in order)
    kept, mass = set(), 0.0
    for token in order:
        if mass >= top_p:
            break
        kept.add(token)
        mass += math.exp(logits[token] - peak) / total
    return kept


def noise_of(seed: int, choice: int, position: int, vocab: int) -> list[float]:
    keys = row_keys(np.array([seed + choice]), np.array([position]))
    return gumbel(torch.from_numpy(keys), torch.arange(vocab, dtype=torch.int32))[0].tolist()


def check_choices(rows: Sequence[Row], requests: Sequence[Submit], results: Results) -> None:
    """Every token of every result is the reference's choice from the logits of its row."""
    by_key = {request.key: request for request in requests}
    whole = {at: (*by_key[at[0]].prompt, *result.ids) for at, result in results.items()}
    met: Counter[tuple[str, int]] = Counter()
    for row in rows:
        at = (row.request, row.choice)
        if len(row.context) < len(whole[at]) and row.context == whole[at][: len(row.context)]:
            assert choose(row, by_key[row.request]) == whole[at][len(row.context)], (at, len(row.context))
            met[at] += 1
    assert met == {at: len(result.ids) for at, result in results.items()}
