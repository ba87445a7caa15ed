"""Every KV manager against a plain model of what it was told, under random sequences of calls."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inferd.plugin.types import KVGroupSize
from inferd_plugins.kv.contiguous import ContiguousKV
from inferd_plugins.kv.paged import NO_BLOCK, PagedKV
from inferd_plugins.kv.recompute import RecomputeKV

SIZE = 3
LIMIT = 18


class KVMachine(RuleBasedStateMachine):
    """Keeps the content every block ought to have, as a device would; hits must find exactly that."""

    manager_class: type = PagedKV
    windows: tuple[int | None, ...] = (None,)

    @initialize(blocks=st.integers(4, 12), cache=st.booleans())
    def start(self, blocks: int, cache: bool) -> None:
        self.manager = self.manager_class()
        self.manager.bind([KVGroupSize(blocks, w) for w in self.windows], SIZE, prefix_cache=cache)
        self.cache = cache
        self.blocks = blocks
        self.next_key = 0
        self.sequences: dict[int, tuple[str, list[int], int]] = {}
        """key -> (domain, all tokens, how many are computed)"""
        self.tables: dict[int, list[list[int]]] = {}
        self.memory: list[dict[int, tuple]] = [{} for _ in self.windows]
        """per group: block -> what the device wrote there: (domain, prefix up to its end)"""

    @rule(domain=st.sampled_from(["", "x"]), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def admit(self, domain: str, tokens: list[int]) -> None:
        key = self.next_key
        self.next_key += 1
        before = self.manager.stats()
        hit = self.manager.match(key, tokens, domain=domain)
        assert hit % SIZE == 0
        assert hit < len(tokens)
        assert self.cache or not hit
        tables = self.manager.allocate(key, len(tokens), limit=LIMIT)
        if tables is None:
            self.manager.free(key)
            after = self.manager.stats()
            assert (after.free_blocks, after.queries) == (before.free_blocks, before.queries)
            return
        assert self.manager.stats().queries - before.queries in (0, len(tokens))
        self.sequences[key] = (domain, tokens, hit)
        self.tables[key] = tables
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, hit - window + 1)
            for index in range(first // SIZE, hit // SIZE):
                block = tables[group][index]
                assert self.memory[group][block] == (domain, tuple(tokens[: (index + 1) * SIZE])), "a wrong hit"

    def _write(self, key: int, start: int, end: int) -> None:
        """What the device does: fill the blocks of these positions."""
        domain, tokens, _ = self.sequences[key]
        for group in range(len(self.windows)):
            for index in range(start // SIZE, -(-end // SIZE)):
                block = self.tables[key][group][index]
                assert block != NO_BLOCK
                self.memory[group][block] = (domain, tuple(tokens[: min(end, (index + 1) * SIZE)]))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        domain, tokens, computed = self.sequences[key]
        if computed == len(tokens):
            return
        end = data.draw(st.integers(computed + 1, len(tokens)))
        self._write(key, computed, end)
        self.manager.append(key, tokens[computed:end])
        self.sequences[key] = (domain, tokens, end)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), drafts=st.integers(0, 4), accepted=st.integers(0, 4))
    def decode(self, data: st.DataObject, drafts: int, accepted: int) -> None:
        """One verification: room for drafts, some accepted, the rest cut off."""
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        domain, tokens, computed = self.sequences[key]
        if computed != len(tokens) or len(tokens) + 1 + drafts > LIMIT:
            return
        tables = self.manager.allocate(key, len(tokens) + 1 + drafts, limit=LIMIT)
        if tables is None:
            return
        self.tables[key] = tables
        new = data.draw(st.lists(st.integers(0, 1), min_size=1 + drafts, max_size=1 + drafts))
        self.sequences[key] = (domain, tokens + new, computed)
        self._write(key, computed, len(tokens) + len(new))
        kept = new[: 1 + min(accepted, drafts)]
        self.manager.append(key, kept)
        self.manager.truncate(key, computed + len(kept))
        self.sequences[key] = (domain, tokens + kept, computed + len(kept))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), reusable=st.booleans())
    def free(self, data: st.DataObject, reusable: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        del self.sequences[key], self.tables[key]
        self.manager.free(key, reusable=reusable)
        with pytest.raises(KeyError):
            self.manager.free(key)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def start_over(self, data: st.DataObject) -> None:
        """What the scheduler does without KV reuse."""
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        if self.manager.retains:
            return
        domain, tokens, _ = self.sequences[key]
        self.manager.truncate(key, 0)
        if self.manager.allocate(key, len(tokens), limit=LIMIT) is None:
            self.manager.free(key)
            del self.sequences[key], self.tables[key]
        else:
            self.sequences[key] = (domain, tokens, 0)

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "manager"):
            return
        assert self.manager.problems() == []
        stats = self.manager.stats()
        assert stats.total_blocks == self.blocks * len(self.windows)
        assert 0 <= stats.cached_blocks <= stats.free_blocks <= stats.total_blocks
        assert 0 <= stats.hits <= stats.queries
        if not self.sequences:
            assert stats.free_blocks == stats.total_blocks

    @invariant()
    def live_blocks_hold_what_was_written(self) -> None:
        """No block was handed out twice: every sequence still reads its own tokens."""
        if not hasattr(self, "manager"):
            return
        for key, (domain, tokens, computed) in self.sequences.items():
            for group, window in enumerate(self.windows):
                first = 0 if window is None else max(0, computed - window + 1)
                for index in range(first // SIZE, -(-computed // SIZE)):
                    found = self.memory[group][self.tables[key][group][index]]
                    wanted = tuple(tokens[: min(computed, (index + 1) * SIZE)])
                    assert found[0] == domain
                    assert found[1][: len(wanted)] == wanted


CASES = {
    "paged": (PagedKV, (None,)),
    "paged with a window beside": (PagedKV, (None, 5)),
    "paged with a window only": (PagedKV, (4,)),
    "contiguous": (ContiguousKV, (None, None)),
    "recompute": (RecomputeKV, (None,)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_books(name: str):
    manager_class, windows = CASES[name]
    machine = type("Machine", (KVMachine,), {"manager_class": manager_class, "windows": windows})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
