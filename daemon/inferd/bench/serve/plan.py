"""What will be sent and when: lengths from a profile, prompts of exactly those lengths, times of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from inferd.bench.serve.profiles import Lengths, Profile

TEXT = """Once there was a printer who set every page by hand, letter after letter, and who said that haste had never
improved a single line. Visitors came from seven towns to watch him work. "Why not buy a machine?" they asked;
"a machine would do in one hour what takes you all week." He answered: machines are quick, yes, but which of
them has read the book? In winter, when ink grew thick (below 5 degrees it hardly moves), he warmed the plates
on an iron stove, counted his type, and wrote long letters to friends abroad: 12 pages to Lisbon, 30 to Oslo,
none to Vienna since the quarrel of 1871. What he kept in the green box under the window nobody knew until much
later, and even then people disagreed about its meaning."""
"""Its tokens are what prompts are made of: every model knows them, and shuffled they repeat nothing."""


CHUNK = 64


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the load."""

    index: int
    prompt: list[int]
    output: int
    clipped: bool = False
    """Its lengths were cut to the context."""


def requests(profile: Profile, vocabulary: Sequence[int], *, context: int | None, seed: int) -> Iterator[Planned]:
    """Yield requests without end; the same seed plans the same ones. Raises ValueError where nothing fits."""
    rng = np.random.default_rng(seed)
    ids = np.unique(np.asarray(vocabulary))
    head: list[int] = []
    for start in count(step=CHUNK):
        drawn = profile.draw(rng, CHUNK)
        fitting = [_fit(lengths, context) for lengths in drawn]
        head += rng.choice(ids, max(0, max(each.shared for each in fitting) - len(head))).tolist()
        for index, (wanted, lengths) in enumerate(zip(drawn, fitting, strict=True), start):
            prompt = head[: lengths.shared] + rng.choice(ids, lengths.input - lengths.shared).tolist()
            yield Planned(index, prompt, lengths.output, clipped=lengths != wanted)


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yield the times of a Poisson process of `rate` a second, without end."""
    rng = np.random.default_rng(seed)
    now = 0.0
    while True:
        now += rng.exponential(1 / rate)
        yield now


def _fit(lengths: Lengths, context: int | None) -> Lengths:
    """Cut what exceeds the context: the output first, down to one token, then the input."""
    if context is None or lengths.input + lengths.output <= context:
        return lengths
    if context < 2:
        raise ValueError(f"the context of {context} tokens has no room for a request")
    input = min(lengths.input, context - 1)
    return Lengths(input, min(lengths.output, context - input), min(lengths.shared, input - 1))
