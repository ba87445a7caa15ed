"""Request traces of the benchmarks: seeded, made of real text where its structure matters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferd.link import Submit
from inferd.load.vocab import open_vocabulary
from inferd_client.protocol import SamplingParams


def submit(key: str, prompt: Sequence[int], max_tokens: int) -> Submit:
    """A greedy request that runs exactly to its length, so that every run does the same work."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=1)
    return Submit(key=key, client="bench", prompt=list(prompt), sampling=sampling)


def random_prompt(rng: np.random.Generator, length: int, vocab: int) -> list[int]:
    """Ids without structure: no prefix is shared and no draft can guess them."""
    return rng.integers(100, vocab, length).tolist()


SCALE = 1 / 4
"""Of the lengths of conversations, so that a run takes seconds on a small machine."""
TAIL = 1.0
"""Deviation of the logarithm: Azure's conversations have a median of 129 tokens and a mean of 211 (Splitwise, Patel et
al., ISCA 2024), which a log-normal has at 0.99."""


def conversations(seed: int, vocab: int, *, count: int) -> list[Submit]:
    """Log-normal lengths with a long tail: the means of ShareGPT, 161 tokens in and 338 out, cut off at 2048, scaled.

    The means are those of the vLLM paper (Kwon et al., SOSP 2023, figure 11).
    """
    rng = np.random.default_rng(seed)
    means = np.array([161.0, 338.0]) * SCALE
    drawn = rng.lognormal(np.log(means) - TAIL**2 / 2, TAIL, (count, 2))
    lengths = np.clip(drawn, 4, 2048 * SCALE).astype(int).tolist()
    return [submit(f"r{i}", random_prompt(rng, prompt, vocab), output) for i, (prompt, output) in enumerate(lengths)]


def short_answers(
    seed: int, vocab: int, *, count: int, prompt: int = 48, output: int = 24, cap: int = 160
) -> list[Submit]:
    """Log-normal prompt and output lengths around the given medians: more to read than to write, and hardly a tail."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(np.log(prompt), 0.6, count), 8, 4 * prompt).astype(int)
    outputs = np.clip(rng.lognormal(np.log(output), 0.9, count), 4, cap).astype(int)
    return [
        submit(f"r{i}", random_prompt(rng, int(p), vocab), int(o))
        for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))
    ]


def uniform(seed: int, vocab: int, *, count: int, prompt: int, output: int) -> list[Submit]:
    """Requests of one size."""
    rng = np.random.default_rng(seed)
    return [submit(f"r{i}", random_prompt(rng, prompt, vocab), output) for i in range(count)]


def shared_prefix(seed: int, vocab: int, *, count: int, prefix: int, prompt: int, output: int) -> list[Submit]:
    """One long system prompt, then something of each request's own."""
    rng = np.random.default_rng(seed)
    head = random_prompt(rng, prefix, vocab)
    return [submit(f"r{i}", head + random_prompt(rng, prompt, vocab), output) for i in range(count)]


PASSAGE = """The lighthouse at Cape Morrow was built in 1874 from grey basalt cut on the island itself. It stands
forty metres above the sea, and on a clear night its lamp can be seen from thirty kilometres away. Three keepers
lived there with their families until 1962, when the lamp was made automatic. Today the lower rooms hold a small
museum of the sea, and the old fog bell still rings at noon on the first day of each year."""


def grounded(seed: int, vocab: int, *, path: str, output: int) -> list[Submit]:
    """Ask for a passage to be copied: the answer repeats the prompt, as in editing and quoting."""
    words = PASSAGE.replace("Morrow", ("Morrow", "Haldane", "Ferris", "Ostrava", "Quill", "Tamsin")[seed % 6])
    chat = f"<|im_start|>user\nRepeat this text word for word:\n{words}<|im_end|>\n<|im_start|>assistant\n"
    prompt = open_vocabulary(Path(path)).encode(chat, special_tokens=True)
    return [submit("r0", prompt, output)]
