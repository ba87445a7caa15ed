"""Checks of KV managers: bookkeeping against a model of what every slot holds. No torch.

Nothing here needs blocks to be contiguous, or prefixes to be found at all; what is found must be right.
"""

from __future__ import annotations

import random

from inferd.plugin.conformance.kv_rig import KVRig
from inferd.plugin.conformance.report import Check, Subject, require

_PROMPT = list(range(100, 112))  # three full blocks


def conservation(subject: Subject) -> None:
    """After any use, every block is free again."""
    for seed in range(4):
        rig = KVRig(subject)
        _walk(rig, random.Random(seed), 120)
        rig.free_all()
        stats = rig.manager.stats()
        require(stats.free_blocks == stats.total_blocks, f"all sequences freed, but {stats}")


def no_double_allocation(subject: Subject) -> None:
    """Two sequences never hold the same block unless it holds the same full prefix of both."""
    for seed in range(4):
        rig, rng = KVRig(subject, prefix_cache=False), random.Random(seed)
        for _ in range(60):
            _walk(rig, rng, 4)
            held = [block for live in rig.live.values() for block in live.tables[0]]
            require(len(set(held)) == len(held), f"a block is held twice: {sorted(held)}")


def freed_once(subject: Subject) -> None:
    """A block that was handed back once can be handed out once."""
    rig = KVRig(subject, 6, prefix_cache=False)
    first = rig.start([1, 2, 3, 4, 5], limit=5)
    second = rig.start([6, 7, 8, 9, 10], limit=5)
    require(first is not None and second is not None, "two sequences of 2 blocks do not fit 6 blocks")
    assert first is not None
    assert second is not None
    rig.truncate(first, 3)
    rig.free(first)
    rig.free(second)
    keys = [rig.start([20 + i, 30 + i, 40 + i, 50 + i], limit=4) for i in range(7)]
    require(all(k is not None for k in keys[:6]), "6 freed blocks do not serve 6 sequences of one block")
    require(keys[6] is None, "7 sequences of one block were admitted to 6 blocks")


def refcounts(subject: Subject) -> None:
    """Blocks that two sequences share stay until both are gone."""
    rig = KVRig(subject, 8)
    first = rig.start(_PROMPT)
    second = rig.start([*_PROMPT[:8], 7, 8])
    require(first is not None, "a sequence of 3 blocks does not fit 8 blocks")
    assert first is not None
    rig.free(first)
    for i in range(8):  # takes over whatever is free; the rig sees it if that was still held
        rig.start([200 + i, 1, 2, 3], limit=4)
    if second is not None:
        rig.free(second)
    rig.free_all()
    require(rig.free_blocks == rig.total_blocks, "shared blocks were not returned")


def match_leaves_one(subject: Subject) -> None:
    """At least one token is left to compute, even if the whole prompt is known."""
    rig = KVRig(subject)
    for length in (4, 5, 8, 12, 1):
        for _ in range(2):
            key = rig.start(_PROMPT[:length])
            require(key is not None, "a freed pool does not take a prompt again")
            assert key is not None
            rig.free(key)


def prefix_content(subject: Subject) -> None:
    """A hit gives blocks that hold exactly this prefix, also after their blocks were recycled."""
    rig = KVRig(subject, 3)
    for i in range(12):
        tokens = [i % 4, i % 3, 5, 6, 7, 8] if i % 2 else [1, 2, 3, 4, i % 5]
        key = rig.start(tokens, limit=8)
        require(key is not None, "an empty pool of 3 blocks does not take 2")
        assert key is not None
        rig.free(key)


def shared_tail(subject: Subject) -> None:
    """Equal blocks behind different beginnings are different: KV depends on the whole prefix."""
    rig = KVRig(subject)
    for head, tail in ((1, 9), (2, 8), (1, 8), (2, 9)):
        key = rig.start([head, 0, 0, 0, tail, tail, tail, tail, 5])
        require(key is not None, "9 tokens do not fit 12 blocks")
        assert key is not None
        rig.free(key)


def not_before_append(subject: Subject) -> None:
    """Tokens whose KV is not computed yet are no prefix for others."""
    rig = KVRig(subject)
    rig.admit(_PROMPT)
    rig.start(_PROMPT)


def domains(subject: Subject) -> None:
    """Sequences of different domains share nothing."""
    rig = KVRig(subject)
    for domain in ("", "adapter", "", "other", "adapter"):
        key = rig.start(_PROMPT, domain=domain)
        require(key is not None, "12 tokens do not fit 12 blocks")
        assert key is not None
        rig.free(key)


def truncate(subject: Subject) -> None:
    """Rejected drafts are dropped: whole blocks go back, and their KV is never served to others."""
    rig = KVRig(subject)
    key = rig.start([1, 2, 3, 4, 5, 6], limit=24)
    require(key is not None, "6 tokens do not fit 12 blocks")
    assert key is not None
    free = rig.free_blocks
    for accepted in (0, 1, 2, 4):
        require(rig.extend(key, [60, 61, 62, 63]), "no room for 4 drafts")
        rig.write_only(key)
        length = len(rig.live[key].tokens) - 4 + accepted
        _accept(rig, key, accepted)
        require(len(rig.live[key].tokens) == length, "the rig lost count")
    require(rig.free_blocks <= free, "blocks came from nowhere")
    dropped = rig.live[key].tokens[:12]
    rig.truncate(key, 5)
    rig.extend(key, [8, 9, 10])
    rig.compute(key)
    rig.free(key)
    for tokens in ([1, 2, 3, 4, 5, 8, 9, 10, 1], dropped, dropped[:9]):
        rig.start(tokens)


def _accept(rig: KVRig, key: int, accepted: int) -> None:
    """Commit `accepted` of the four drafts at the end of a sequence and drop the rest."""
    live = rig.live[key]
    length = len(live.tokens) - 4 + accepted
    if accepted:
        rig.compute(key, accepted)
    rig.truncate(key, length)


def forget(subject: Subject) -> None:
    """`free(reusable=False)` takes the sequence's prefixes out of the cache."""
    rig = KVRig(subject)
    key = rig.start(_PROMPT)
    require(key is not None, "12 tokens do not fit 12 blocks")
    assert key is not None
    rig.free(key, reusable=False)
    found = rig.manager.match(10**6, tuple(_PROMPT), domain="")
    rig.manager.free(10**6)
    require(found == 0, f"{found} tokens of a forgotten sequence were found again")


def all_or_nothing(subject: Subject) -> None:
    """An allocation that does not fit changes nothing."""
    rig = KVRig(subject, 4, prefix_cache=False)
    key = rig.start([1, 2, 3, 4, 5], limit=8)
    require(key is not None, "5 tokens do not fit 4 blocks")
    assert key is not None
    before, table = rig.manager.stats(), list(rig.live[key].tables[0])
    require(rig.admit(list(range(50, 62))) is None, "12 tokens were admitted to the rest of 4 blocks")
    require(rig.manager.stats()[:2] == before[:2], f"a refused sequence changed {before} to {rig.manager.stats()}")
    require(list(rig.live[key].tables[0]) == table, "a refused sequence changed another one's table")
    rig.live[key].limit = 100
    require(not rig.extend(key, [9] * 20), "25 tokens were given room in 4 blocks")
    require(rig.manager.stats()[:2] == before[:2], "a refused growth changed the pool")


def whole_pool(subject: Subject) -> None:
    """Blocks called free can be handed out, cached ones too: an idle pool serves its full size."""
    rig = KVRig(subject, 8)
    for round_ in range(3):
        keys = [rig.start([round_, i, 2, 3, 4], limit=8) for i in range(4)]
        require(all(k is not None for k in keys), f"4 sequences of 2 blocks do not fit 8 blocks: {keys}")
        rig.free_all()
        require(rig.free_blocks == rig.total_blocks, "an idle pool is not free")
        key = rig.start([round_] * 32)
        require(key is not None, "32 tokens do not fit an idle pool of 8 blocks of 4")
        rig.free_all()


def cache_off(subject: Subject) -> None:
    """With the prefix cache off nothing is found."""
    rig = KVRig(subject, prefix_cache=False)
    for _ in range(3):
        key = rig.start(_PROMPT)
        require(key is not None, "12 tokens do not fit 12 blocks")
        assert key is not None
        rig.free(key)
        found = rig.manager.match(10**6, tuple(_PROMPT), domain="")
        rig.manager.free(10**6)
        require(found == 0, f"the cache is off, but {found} tokens were found")


def chunked_growth(subject: Subject) -> None:
    """A sequence that grows token by token keeps what it has."""
    rig = KVRig(subject)
    key = rig.start([1, 2, 3], limit=30)
    other = rig.start([4, 5], limit=10)
    require(key is not None and other is not None, "two short sequences do not fit 12 blocks")
    assert key is not None
    assert other is not None
    for i in range(20):
        require(rig.extend(key, [i]), f"no room at token {i + 4} of a limit of 30")
        rig.compute(key)
        if i < 8:
            require(rig.extend(other, [i + 50]), "no room within the limit")
            rig.compute(other)


def several_groups(subject: Subject) -> None:
    """Every KV group has a table of its own over its own pool."""
    rig = KVRig(subject, windows=(None, None))
    for seed in range(3):
        _walk(rig, random.Random(seed), 60)
    rig.free_all()
    require(rig.free_blocks == rig.total_blocks, "not all blocks came back")


def windows(subject: Subject) -> None:
    """What a windowed group still needs is there; a hit is a prefix that every group can serve."""
    for sizes in ((5,), (None, 6), (1, 9)):
        rig = KVRig(subject, 16, windows=sizes)
        key = rig.start([1, 2, 3, 4, 5, 6], limit=40)
        require(key is not None, "6 tokens do not fit 16 blocks")
        assert key is not None
        for i in range(34):
            require(rig.extend(key, [i]), f"no room at token {i + 7} of a limit of 40")
            rig.compute(key)
        rig.free(key)
        for seed in range(3):
            _walk(rig, random.Random(seed), 80)
        rig.free_all()
        require(rig.free_blocks == rig.total_blocks, "not all blocks came back")


def random_walk(subject: Subject) -> None:
    """Long random use with few distinct tokens: many shared prefixes, evictions and refusals."""
    for seed in range(6):
        rig = KVRig(subject, 10)
        _walk(rig, random.Random(100 + seed), 250)


def _walk(rig: KVRig, rng: random.Random, steps: int) -> None:
    """Admit, grow, verify, truncate and free at random; the rig holds all invariants."""
    for _ in range(steps):
        action = rng.choice(["start", "start", "extend", "verify", "truncate", "free"])
        if action == "start":
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
            rig.start(tokens, domain=rng.choice(["", "", "x"]), limit=len(tokens) + 8)
        elif rig.live:
            _change(rig, rng, action, rng.choice(list(rig.live)))


def _change(rig: KVRig, rng: random.Random, action: str, key: int) -> None:
    live = rig.live[key]
    room = live.limit - len(live.tokens)
    if action == "free":
        rig.free(key, reusable=rng.random() < 0.8)
    elif action == "truncate":
        rig.truncate(key, rng.randrange(live.computed, len(live.tokens) + 1))
    elif action == "extend" and room > 0 and rig.extend(key, [rng.randrange(2)]):
        rig.compute(key)
    elif action == "verify" and room >= 4 and rig.extend(key, [rng.randrange(2) for _ in range(4)]):
        rig.write_only(key)
        _accept(rig, key, rng.randrange(5))


CHECKS: tuple[Check, ...] = (
    conservation,
    no_double_allocation,
    freed_once,
    refcounts,
    match_leaves_one,
    prefix_content,
    shared_tail,
    not_before_append,
    domains,
    truncate,
    forget,
    all_or_nothing,
    whole_pool,
    cache_off,
    chunked_growth,
    several_groups,
    windows,
    random_walk,
)
