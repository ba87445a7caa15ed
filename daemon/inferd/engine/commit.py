"""What a step's new ids mean for one sequence: where it stops, what counts. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferd.engine.batch import Row, RowOutput
    from inferd_client.protocol import FinishReason, TokenLogprob


class Cut(NamedTuple):
    """How much of a chunk of new ids counts, and whether it ends the sequence."""

    kept: int
    finish: FinishReason | None = None
    stop_token: int | None = None


def cut(ids: Seq[int], *, num_output: int, max_tokens: int, min_tokens: int, stop_ids: frozenset[int]) -> Cut:
    """Find the first id that ends the output.

    A stop id counts only after `min_tokens` outputs, and wins over the length when it is the last id
    that fits; one past `max_tokens` was never generated.
    """
    for index, token in enumerate(ids):
        before = num_output + index
        if token in stop_ids and before >= min_tokens:
            return Cut(index + 1, "stop", token)
        if before + 1 >= max_tokens:
            return Cut(index + 1, "length")
    return Cut(len(ids))


class Committed(NamedTuple):
    """Ids that became output of a sequence in one step."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None


def commit_row(row: Row, output: RowOutput) -> Committed:
    """Append a row's ids to its sequence up to a stop; set its counts and, at its end, its finish.

    Drafts past a stop count neither as accepted nor as output; nor does what follows the end of a grammar, which
    stops the output even where that is its last token in length.
    """
    seq = row.seq
    ids, logprobs, _ = output
    num_sampled = len(ids)
    if seq.matcher is not None:
        ids = ids[: seq.matcher.accept(ids)]
    count, seq.finish, seq.stop_token = cut(
        ids,
        num_output=len(seq.tokens) - seq.num_prompt,
        max_tokens=seq.max_tokens,
        min_tokens=seq.sampling.min_tokens,
        stop_ids=seq.stop_ids,
    )
    if seq.matcher is not None and seq.matcher.complete and count == len(ids):
        seq.finish = "stop"
    kept = tuple(ids[:count])
    seq.tokens.extend(kept)
    if row.drafts:
        seq.drafted += len(row.drafts)
        seq.accepted += min(count, num_sampled - 1)
    return Committed(kept, None if logprobs is None else tuple(logprobs[:count]))


def computed_after(row: Row, num_ids: int) -> int:
    """Return the tokens whose KV is right after a sampling row gave `num_ids` ids.

    The accepted drafts have theirs; the id sampled last has none yet.
    """
    seq, start, count, drafts, _ = row
    return min(start + count - len(drafts) + num_ids - 1, len(seq.tokens))


def add_prompt_logprobs(row: Row, found: Seq[TokenLogprob]) -> None:
    """Add the logprobs of the prompt tokens that follow the row's positions, none twice.

    The first prompt token has none. After a preemption earlier rows come again.
    """
    seq = row.seq
    known = seq.prompt_logprobs or [None]
    first = row.start + 1
    known.extend(found[len(known) - first :])
    seq.prompt_logprobs = known
