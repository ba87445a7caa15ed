"""A plain KV manager that is right, and broken ones made from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from inferd.plugin.contracts import BlockTables, KVGroupSize, KVManager, KVStats

Prefix = tuple[str, tuple[int, ...]]


class NaiveKV(KVManager):
    """Paged blocks with a prefix cache, written for reading: whole prefixes are the keys."""

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        self.size, self.prefix_cache = block_size, prefix_cache
        self.total = sum(g.num_blocks for g in groups)
        self.spare = [list(range(g.num_blocks)) for g in groups]
        self.refs: list[Counter[int]] = [Counter() for _ in groups]
        self.known: list[dict[Prefix, int]] = [{} for _ in groups]
        self.tables: dict[int, BlockTables] = {}
        self.tokens: dict[int, list[int]] = {}
        self.domain: dict[int, str] = {}

    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        self.domain[key], self.tokens[key] = domain, []
        self.tables[key] = [[] for _ in self.spare]
        count = self.found(tokens, domain) if self.prefix_cache else 0
        for group, table in enumerate(self.tables[key]):
            for end in range(self.size, count * self.size + 1, self.size):
                table.append(self.known[group][self.name(tokens[:end], domain)])
                self.take(group, table[-1])
        self.tokens[key] = list(tokens[: count * self.size])
        return count * self.size

    def found(self, tokens: Sequence[int], domain: str) -> int:
        count = 0
        while (count + 1) * self.size < len(tokens) and all(
            self.name(tokens[: (count + 1) * self.size], domain) in known for known in self.known
        ):
            count += 1
        return count

    def name(self, tokens: Sequence[int], domain: str) -> Prefix:
        return domain, tuple(tokens)

    def take(self, group: int, block: int) -> None:
        self.refs[group][block] += 1
        if block in self.spare[group]:
            self.spare[group].remove(block)

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = self.tables[key]
        wanted = -(-num_tokens // self.size)
        if any(wanted - len(t) > len(spare) for t, spare in zip(tables, self.spare, strict=True)):
            return None
        for group, table in enumerate(tables):
            while len(table) < wanted:
                table.append(self.spare[group][0])
                self.forget(group, table[-1])
                self.take(group, table[-1])
        return tables

    def forget(self, group: int, block: int) -> None:
        self.known[group] = {name: b for name, b in self.known[group].items() if b != block}

    def append(self, key: int, tokens: Sequence[int]) -> None:
        self.tokens[key] += tokens
        for group, table in enumerate(self.tables[key]):
            for end in range(self.size, len(self.tokens[key]) + 1, self.size):
                name = self.name(self.tokens[key][:end], self.domain[key])
                self.known[group].setdefault(name, table[end // self.size - 1])

    def truncate(self, key: int, num_tokens: int) -> None:
        keep = -(-num_tokens // self.size)
        for group, table in enumerate(self.tables[key]):
            if num_tokens < len(self.tokens[key]):
                for block in table[num_tokens // self.size :]:
                    self.forget(group, block)
            for block in table[keep:]:
                self.release(group, block)
            del table[keep:]
        del self.tokens[key][num_tokens:]

    def release(self, group: int, block: int) -> None:
        self.refs[group][block] -= 1
        if not self.refs[group][block]:
            self.spare[group].append(block)

    def free(self, key: int, *, reusable: bool = True) -> None:
        for group, table in enumerate(self.tables.pop(key)):
            for block in table:
                if not reusable:
                    self.forget(group, block)
                self.release(group, block)
        del self.tokens[key], self.domain[key]

    def stats(self) -> KVStats:
        spare = sum(len(s) for s in self.spare)
        cached = sum(len(set(k.values()) & set(s)) for k, s in zip(self.known, self.spare, strict=True))
        return KVStats(self.total, spare, cached, 0, 0)


class FreesTwice(NaiveKV):
    """Hands a sequence's last block back twice."""

    def free(self, key: int, *, reusable: bool = True) -> None:
        table = list(self.tables[key][0])
        super().free(key, reusable=reusable)
        self.spare[0] += table[-1:]


class LeaksOnTruncate(NaiveKV):
    """Blocks of rejected drafts are lost."""

    def truncate(self, key: int, num_tokens: int) -> None:
        for table in self.tables[key]:
            del table[-(-num_tokens // self.size) :]
        del self.tokens[key][num_tokens:]


class KeepsStaleHash(NaiveKV):
    """A block that is handed out again still answers for its old prefix."""

    def forget(self, group: int, block: int) -> None:
        pass


class IgnoresReferences(NaiveKV):
    """The first of two sharers to end takes the blocks along."""

    def release(self, group: int, block: int) -> None:
        self.refs[group][block] = 1
        super().release(group, block)


class MatchesAll(NaiveKV):
    """Leaves no token to compute when the whole prompt is known."""

    def found(self, tokens: Sequence[int], domain: str) -> int:
        return super().found([*tokens, -1], domain)


class IgnoresDomain(NaiveKV):
    """Serves one adapter's KV to another."""

    def name(self, tokens: Sequence[int], domain: str) -> Prefix:
        return "", tuple(tokens)


class IgnoresHead(NaiveKV):
    """Keys blocks by their own tokens only."""

    def name(self, tokens: Sequence[int], domain: str) -> Prefix:
        return domain, tuple(tokens[-self.size :])


class SharesEarly(NaiveKV):
    """Offers blocks to others before their KV is computed."""

    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        self.prompt = list(tokens)
        return super().match(key, tokens, domain=domain)

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = super().allocate(key, num_tokens, limit=limit)
        for group, table in enumerate(tables or []):
            for end in range(self.size, min(num_tokens, len(self.prompt)) + 1, self.size):
                self.known[group].setdefault((self.domain[key], tuple(self.prompt[:end])), table[end // self.size - 1])
        return tables


class TakesWhatIsLeft(NaiveKV):
    """A sequence that does not fit keeps what it could get."""

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = super().allocate(key, num_tokens, limit=limit)
        if tables is None:
            for group, spare in enumerate(self.spare):
                del spare[: len(spare) // 2]
                self.refs[group].clear()
        return tables


class CachesAlways(NaiveKV):
    """Has its prefix cache on when it was told off."""

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        super().bind(groups, block_size, prefix_cache=True)


class NeverEvicts(NaiveKV):
    """Calls cached blocks free but does not hand them out."""

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        held = [set(known.values()) for known in self.known]
        usable = min(len(set(s) - h) for s, h in zip(self.spare, held, strict=True))
        if -(-num_tokens // self.size) - len(self.tables[key][0]) > usable:
            return None
        return super().allocate(key, num_tokens, limit=limit)


class RemembersBadNumbers(NaiveKV):
    """Keeps the prefixes of a sequence that must not be used again."""

    def free(self, key: int, *, reusable: bool = True) -> None:
        super().free(key)


class HandsOutTwice(NaiveKV):
    """Gives the same last block to everybody."""

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = super().allocate(key, num_tokens, limit=limit)
        if tables and len(tables[0]) > 1 and self.tables and key % 3 == 0:
            other = next(iter(self.tables.values()))[0]
            if other and other is not tables[0]:
                tables[0][-1] = other[-1]
        return tables


class OneTable(NaiveKV):
    """Gives all KV groups the table of the first."""

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> Any:
        tables = super().allocate(key, num_tokens, limit=limit)
        return tables and tables[:1]


class ReusesDrafts(NaiveKV):
    """Registers drafts as computed when they are cut off."""

    def truncate(self, key: int, num_tokens: int) -> None:
        keep = -(-num_tokens // self.size)
        for group, table in enumerate(self.tables[key]):
            for block in table[keep:]:
                self.release(group, block)
            del table[keep:]
        del self.tokens[key][num_tokens:]


class DropsTooMuch(NaiveKV):
    """Gives back a block that the window still reaches into."""

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        super().bind(groups, block_size, prefix_cache=False)
        self.windows = [g.window for g in groups]

    def append(self, key: int, tokens: Sequence[int]) -> None:
        super().append(key, tokens)
        for group, window in enumerate(self.windows):
            table, behind = self.tables[key][group], len(self.tokens[key]) - (window or len(self.tokens[key]))
            for index in range(min(-(-behind // self.size), len(table) - 1)):
                if table[index] >= 0:
                    self.release(group, table[index])
                    table[index] = -1

    def release(self, group: int, block: int) -> None:
        if block >= 0:
            super().release(group, block)


CAUGHT_BY = {
    DropsTooMuch: "windows",
    FreesTwice: "freed_once",
    LeaksOnTruncate: "conservation",
    KeepsStaleHash: "prefix_content",
    IgnoresReferences: "refcounts",
    MatchesAll: "match_leaves_one",
    IgnoresDomain: "domains",
    IgnoresHead: "shared_tail",
    SharesEarly: "not_before_append",
    TakesWhatIsLeft: "all_or_nothing",
    CachesAlways: "cache_off",
    NeverEvicts: "whole_pool",
    RemembersBadNumbers: "forget",
    HandsOutTwice: "no_double_allocation",
    OneTable: "several_groups",
    ReusesDrafts: "truncate",
}
