"""Checks of draft models: whatever they propose, it must be safe to verify. No torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from inferd.plugin.conformance.report import Check, Subject, require
from inferd.plugin.contracts import DraftModel
from inferd.plugin.types import DenseMlp, DraftOutcome, DraftSequence, Gqa, LayerSpec, ModelSpec, RopeSpec

VOCAB = 50


class _Context:
    """A `DraftContext` of a tiny model that offers no second model."""

    device = "cpu"
    spec = ModelSpec(
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        layers=(LayerSpec(Gqa(heads=4, kv_heads=2, head_dim=8, scale=8**-0.5), DenseMlp(inner=64)),),
        ropes={"main": RopeSpec(theta=1e4, dim=8)},
        norm_eps=1e-6,
        trained_context=256,
        tied_embeddings=False,
    )

    def load(self, model: str) -> Any:
        raise ValueError(f"the conformance kit has no model {model}")

    def layers(self, count: int) -> Any:
        raise ValueError("the conformance kit has no target model")


def _bound(subject: Subject) -> DraftModel:
    draft: DraftModel = subject.make()
    draft.bind(_Context())
    return draft


def _histories(seed: int, count: int = 6) -> list[list[int]]:
    """Return token lists with repetition, some short."""
    rng = random.Random(seed)
    motif = [rng.randrange(VOCAB) for _ in range(5)]
    lists = [motif * (i + 1) + [rng.randrange(VOCAB) for _ in range(i)] + motif[:2] for i in range(count - 2)]
    return [*lists, [rng.randrange(VOCAB)], [7] * 30]


def _sequences(histories: Sequence[Sequence[int]], limit: int = 8) -> list[DraftSequence]:
    return [DraftSequence(key, tokens, limit) for key, tokens in enumerate(histories)]


def one_list_each(subject: Subject) -> None:
    """One list of proposals for each sequence, in order; none for no sequences."""
    draft = _bound(subject)
    for count in (0, 1, 3, 6):
        got = draft.propose(_sequences(_histories(0)[:count]), 4)
        require(len(got) == count, f"{len(got)} lists for {count} sequences")


def limits(subject: Subject) -> None:
    """Never more than min(k, limit) tokens."""
    for k in (0, 1, 3, 8):
        draft = _bound(subject)
        for limit in (0, 1, 2, 8):
            for tokens in draft.propose(_sequences(_histories(1), limit), k):
                require(len(tokens) <= min(k, limit), f"{len(tokens)} tokens for k {k} and limit {limit}")


def valid_tokens(subject: Subject) -> None:
    """Every proposal is a token id of the vocabulary, as a plain int."""
    draft = _bound(subject)
    for seed in range(5):
        for tokens in draft.propose(_sequences(_histories(seed)), 6):
            bad = [t for t in tokens if type(t) is not int or not 0 <= t < VOCAB]
            require(not bad, f"proposed {bad}, not ids below {VOCAB}")


def tokens_kept(subject: Subject) -> None:
    """The sequences' tokens are not changed, now or by changing a proposal."""
    draft, histories = _bound(subject), _histories(2)
    before = [list(h) for h in histories]
    for tokens in draft.propose(_sequences(histories), 6):
        tokens.append(0)
        tokens.clear()
    require(histories == before, "the tokens of a sequence were changed")


def deterministic(subject: Subject) -> None:
    """The same calls give the same proposals."""
    runs = [_conversation(_bound(subject)) for _ in range(3)]
    require(runs[0] == runs[1] == runs[2], "the same calls gave different proposals")


def _conversation(draft: DraftModel) -> list[list[list[int]]]:
    histories, said = _histories(3), []
    for step in range(4):
        proposals = draft.propose(_sequences(histories), 4)
        said.append([list(p) for p in proposals])
        draft.observe([DraftOutcome(i, len(p), len(p) // 2) for i, p in enumerate(proposals)])
        for history, tokens in zip(histories, proposals, strict=True):
            history += [*tokens[: len(tokens) // 2], (history[-1] + step) % VOCAB]
    return said


def batch_invariant(subject: Subject) -> None:
    """A sequence's proposals do not depend on its batch-mates or its place in the batch."""
    together = _bound(subject).propose(_sequences(_histories(4)), 5)
    backwards = _bound(subject).propose(_sequences(_histories(4))[::-1], 5)[::-1]
    alone = [_bound(subject).propose([s], 5)[0] for s in _sequences(_histories(4))]
    require(together == backwards, "the order of the batch changes proposals")
    require(together == alone, "batch-mates change proposals")


def drop_forgets(subject: Subject) -> None:
    """After `drop`, a key that is used again is a new sequence."""
    old, new = _histories(5)[3], [VOCAB - 1 - t for t in _histories(6)[2]]
    used = _bound(subject)
    used.propose([DraftSequence(1, old, 8)], 4)
    used.observe([DraftOutcome(1, 4, 4)])
    used.drop(1)
    fresh = _bound(subject)
    for tokens in (new, new[:3], [3]):
        got = used.propose([DraftSequence(1, tokens, 8)], 4)
        want = fresh.propose([DraftSequence(1, tokens, 8)], 4)
        require(got == want, "a dropped sequence still has an effect")
        used.drop(1)
        fresh.drop(1)


def unknown_keys(subject: Subject) -> None:
    """Dropping or observing a sequence that was never proposed for is harmless."""
    draft = _bound(subject)
    draft.drop(99)
    draft.observe([DraftOutcome(98, 3, 1)])
    draft.observe([])
    draft.propose(_sequences(_histories(0)), 2)
    draft.drop(0)
    draft.drop(0)


def short_histories(subject: Subject) -> None:
    """One token, and many equal ones, are fine."""
    draft = _bound(subject)
    for tokens in ([0], [1, 1], [2] * 3, list(range(VOCAB))):
        got = draft.propose([DraftSequence(0, tokens, 4)], 4)
        require(len(got) == 1, f"{len(got)} lists for one sequence")
        draft.drop(0)


CHECKS: tuple[Check, ...] = (
    one_list_each,
    limits,
    valid_tokens,
    tokens_kept,
    deterministic,
    batch_invariant,
    drop_forgets,
    unknown_keys,
    short_histories,
)
