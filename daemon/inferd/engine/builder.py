"""`Plan` to `Batch`: flat arrays from fixed numpy buffers, with little Python per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferd.engine.batch import Batch, SlotInit
from inferd.grammar.masks import Constrained

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferd.engine.batch import Plan, Row
    from inferd.engine.request import Sequence
    from inferd.engine.shape import EngineShape
    from inferd.grammar.masks import MaskMaker


class _Step(NamedTuple):
    """The arrays of `Batch` that the rows of a plan decide."""

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    slots: NDArray[np.int64]
    sample_rows: NDArray[np.int32]
    seq_slots: NDArray[np.int32]
    draft_lens: NDArray[np.int32]
    sampling_seqs: NDArray[np.int32]


class BatchBuilder:
    """Keeps the block table of every executor slot, so that a step copies only its new blocks.

    A table entry is written when the first token of its block runs, and all of them when a sequence
    enters a slot. Entries before a row's start cannot have changed in between: their tokens are
    computed, and managers never exchange a block under computed tokens.
    """

    def __init__(self, shape: EngineShape, num_groups: int, masks: MaskMaker | None = None) -> None:
        """`masks` is needed where sequences follow grammars."""
        self._block_size = shape.block_size
        most_seqs, most_tokens = shape.max_sequences, shape.token_budget
        self._tables = np.zeros((num_groups, most_seqs, shape.max_blocks), np.int32)
        self._token_ids = np.zeros(most_tokens, np.int32)
        self._positions = np.zeros(most_tokens, np.int32)
        self._slots = np.zeros((num_groups, most_tokens), np.int64)
        self._cu_seqlens = np.zeros(most_seqs + 1, np.int32)
        self._context_lens = np.zeros(most_seqs, np.int32)
        self._seq_slots = np.zeros(most_seqs, np.int32)
        self._draft_lens = np.zeros(most_seqs, np.int32)
        self._masks = masks
        self._no_masks = np.empty(0, np.int32), np.empty((0, 0), np.int32)
        self._no_drafts = np.zeros(most_seqs, np.int32)
        self._arange = np.arange(max(most_tokens, most_seqs) + 1, dtype=np.int32)

    def build(self, plan: Plan) -> Batch:
        """Return the arrays of a plan that has rows; they stay valid until the next call."""
        rows, counts = plan.rows, plan.counts
        for seq in plan.entered:
            self._write_tables(seq, 0, len(seq.tables[0]) if seq.tables else 0)
        step = self._decode_step(rows, plan.num_steps) if counts.decode == len(rows) else self._ragged_step(plan)
        masked_rows, masks = self._grammar_masks([rows[b] for b in step.sampling_seqs.tolist()])
        return Batch(
            counts=counts,
            **step._asdict(),
            masked_rows=masked_rows,
            masks=masks,
            prompt_rows=_prompt_rows(rows, counts.decode + counts.verify),
            num_steps=plan.num_steps,
            enter=[_slot_init(seq) for seq in plan.entered],
            leave=list(plan.left),
        )

    def _decode_step(self, rows: list[Row], num_steps: int) -> _Step:
        """One token a sequence, the step that is made most often: lists copied into arrays and little else.

        While a model runs, its weights pass through the caches; each numpy function that is not used here saves more
        than its own work.
        """
        num_seqs, size = len(rows), self._block_size
        seqs, starts = [row.seq for row in rows], [row.start for row in rows]
        seq_slots, positions = self._seq_slots[:num_seqs], self._positions[:num_seqs]
        token_ids, slots = self._token_ids[:num_seqs], self._slots[:, :num_seqs]
        seq_slots[:] = [seq.slot for seq in seqs]
        token_ids[:] = [_token(seq, start) for seq, start in zip(seqs, starts, strict=True)]
        positions[:] = starts
        for group in range(len(slots)):
            blocks = [max(0, (seq.tables or ())[group][start // size]) for seq, start in zip(seqs, starts, strict=True)]
            slots[group] = [block * size + start % size for block, start in zip(blocks, starts, strict=True)]
            for seq, start in zip(seqs, starts, strict=True):
                for index in range(-(-start // size), (start + num_steps - 1) // size + 1):
                    self._tables[group, seq.slot, index] = (seq.tables or ())[group][index]
        return _Step(
            token_ids=token_ids,
            positions=positions,
            cu_seqlens=self._arange[: num_seqs + 1],
            context_lens=np.add(positions, 1, out=self._context_lens[:num_seqs]),
            block_tables=self._tables[:, seq_slots, : (max(starts) + num_steps - 1) // size + 1],
            slots=slots,
            sample_rows=self._arange[:num_seqs],
            seq_slots=seq_slots,
            draft_lens=self._no_drafts[:num_seqs],
            sampling_seqs=self._arange[:num_seqs],
        )

    def _ragged_step(self, plan: Plan) -> _Step:
        """Any rows."""
        rows, num_decode = plan.rows, plan.counts.decode
        num_seqs = len(rows)
        seqs, starts, lens, drafts, samples = zip(*rows, strict=True)
        start = np.array(starts, np.int32)
        cu_seqlens = self._cu_seqlens[: num_seqs + 1]
        np.cumsum(lens, out=cu_seqlens[1:])
        context_lens = np.add(start, lens, out=self._context_lens[:num_seqs], casting="unsafe")
        seq_slots = self._seq_slots[:num_seqs]
        seq_slots[:] = [seq.slot for seq in seqs]
        draft_lens = self._no_drafts[:num_seqs]
        if plan.counts.verify:
            draft_lens = self._draft_lens[:num_seqs]
            draft_lens[:] = [len(d) for d in drafts]
        self._add_blocks(rows, start, num_decode)
        token_ids = self._fill_tokens(rows, num_decode, int(cu_seqlens[-1]))
        positions, slots, tables = self._locate(start, cu_seqlens, context_lens, seq_slots)
        sampling = np.flatnonzero(samples).astype(np.int32)
        return _Step(
            token_ids=token_ids,
            positions=positions,
            cu_seqlens=cu_seqlens,
            context_lens=context_lens,
            block_tables=tables,
            slots=slots,
            sample_rows=self._sample_rows(cu_seqlens, draft_lens, sampling),
            seq_slots=seq_slots,
            draft_lens=draft_lens,
            sampling_seqs=sampling,
        )

    def _write_tables(self, seq: Sequence, first: int, end: int) -> None:
        for group, table in enumerate(seq.tables or ()):
            found = np.array(table[first:end], np.int32)
            self._tables[group, seq.slot, first : first + len(found)] = np.maximum(found, 0, out=found)

    def _add_blocks(self, rows: list[Row], start: NDArray[np.int32], num_decode: int) -> None:
        """Copy the blocks that this step begins to fill."""
        size = self._block_size
        for index in np.flatnonzero(start[:num_decode] % size == 0):
            row = rows[index]
            block = row.start // size
            for group, table in enumerate(row.seq.tables or ()):
                self._tables[group, row.seq.slot, block] = table[block]
        for row in rows[num_decode:]:
            self._write_tables(row.seq, row.start // size, -(-(row.start + row.num_tokens) // size))

    def _fill_tokens(self, rows: list[Row], num_decode: int, num_tokens: int) -> NDArray[np.int32]:
        out = self._token_ids[:num_tokens]
        out[:num_decode] = [_token(row.seq, row.start) for row in rows[:num_decode]]
        at = num_decode
        for seq, start, count, drafts, _ in rows[num_decode:]:
            known = count - len(drafts)
            out[at : at + known] = seq.tokens[start : start + known]
            if drafts:
                out[at + known : at + count] = drafts
            at += count
        return out

    def _locate(
        self,
        start: NDArray[np.int32],
        cu_seqlens: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        seq_slots: NDArray[np.int32],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Return positions [T], KV slots [G, T] and block tables [G, B, M]."""
        num_seqs, num_tokens = len(start), int(cu_seqlens[-1])
        size = self._block_size
        tables = self._tables[:, seq_slots, : -(-int(context_lens.max()) // size)]
        positions = self._positions[:num_tokens]
        if num_tokens == num_seqs:
            row_of = self._arange[:num_seqs]
            positions[:] = start
        else:
            lens = np.diff(cu_seqlens)
            row_of = np.repeat(self._arange[:num_seqs], lens)
            np.subtract(self._arange[:num_tokens], np.repeat(cu_seqlens[:-1] - start, lens), out=positions)
        block, offset = np.divmod(positions, np.int32(size))
        slots = self._slots[:, :num_tokens]
        np.multiply(tables[:, row_of, block], size, out=slots)
        slots += offset
        return positions, slots, tables

    def _sample_rows(
        self, cu_seqlens: NDArray[np.int32], draft_lens: NDArray[np.int32], sampling: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Return the last 1 + drafts rows of every sampling sequence."""
        ends = cu_seqlens[1:][sampling]
        counts = draft_lens[sampling] + 1
        total = int(counts.sum())
        if total == len(sampling):
            return ends - 1
        offsets = np.cumsum(counts) - counts
        return (self._arange[:total] + np.repeat(ends - counts - offsets, counts)).astype(np.int32)

    def _grammar_masks(self, sampling: list[Row]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the rows of R that follow a grammar, and the mask of each."""
        if all(row.seq.matcher is None for row in sampling):
            return self._no_masks
        constrained: list[Constrained] = []
        masked_rows: list[int] = []
        at = 0
        for row in sampling:
            if row.seq.matcher is not None:
                constrained.append(Constrained(row.seq.matcher, row.drafts))
                masked_rows += range(at, at + len(row.drafts) + 1)
            at += len(row.drafts) + 1
        assert self._masks is not None
        return np.array(masked_rows, np.int32), self._masks.make(constrained)


def _token(seq: Sequence, index: int) -> int:
    """Return a token of a sequence, or where to find it: the step in flight chooses it, and keeps it by slot."""
    return seq.tokens[index] if index < len(seq.tokens) else ~seq.slot


def _prompt_rows(rows: list[Row], first: int) -> tuple[tuple[int, int], ...]:
    """List the sequences whose prompt rows need logprobs, with how many alternatives."""
    return tuple(
        (index, row.seq.sampling.prompt_logprobs or 0)
        for index, row in enumerate(rows[first:], first)
        if row.seq.needs_prompt_rows and row.start < row.seq.num_prompt - 1
    )


def _slot_init(seq: Sequence) -> SlotInit:
    return SlotInit(
        slot=seq.slot,
        seed=seq.seed,
        sampling=seq.sampling,
        num_prompt=seq.num_prompt,
        tokens=list(seq.tokens),
        eos_ids=tuple(sorted(seq.eos_ids)),
        bad_word_ids=seq.bad_word_ids,
    )
