"""Checks of attention backends, against the float64 oracle."""

from __future__ import annotations

import torch

from inferd.plugin.conformance.attention_rig import Rig, Turn, close, gqa
from inferd.plugin.conformance.report import Check, NonconformanceError, SkipCheckError, Subject, require
from inferd.plugin.types import DenseMlp, Gqa, KVGroup, KVPlane, LayerSpec, ModelSpec, ProbeContext, Reject, RopeSpec


def layout(subject: Subject) -> None:
    """`kv_layout` keeps group, format and block size, and refuses undeclared formats by ValueError."""
    rig = Rig(subject, gqa(subject), [4])
    got = rig.layout
    require(got.format == rig.format, f"asked for {rig.format}, layout says {got.format}")
    require(got.group.layers == (0,), f"layout changed the layers of the group: {got.group.layers}")
    require(got.bytes_per_block > 0, "a block has no bytes")
    declared = subject.spec.capabilities.kv_formats
    for format in ("fp32", "bf16", "fp16", "int8", "fp8"):
        if declared and format not in declared:
            _refuses(rig, format)


def _refuses(rig: Rig, format: str) -> None:
    group = KVGroup(layers=(0,), planes=(KVPlane("k", 2, rig.spec.head_dim), KVPlane("v", 2, rig.spec.head_dim)))
    try:
        rig.backend.kv_layout(group, format, rig.layout.block_size)
    except ValueError:
        return
    raise NonconformanceError(f"kv_layout accepts format {format}, which the spec does not declare")


def single_token(subject: Subject) -> None:
    """A prompt of one token attends to itself alone; then it decodes."""
    Rig(subject, gqa(subject), [3]).run([Turn(0, 1)], [Turn(0, 1)], [Turn(0, 1)])


def page_multiples(subject: Subject) -> None:
    """Prompts that end just before, at and just after a block boundary, then three decodes."""
    size = Rig(subject, gqa(subject), [1]).layout.block_size
    for length in (size - 1, size, size + 1, 2 * size, 2 * size + 1, 3 * size - 1):
        rig = Rig(subject, gqa(subject), [length + 3], seed=length)
        rig.run([Turn(0, length)], *[[Turn(0, 1)]] * 3)


def scattered_tables(subject: Subject) -> None:
    """Blocks in any order, those of several sequences among each other."""
    for seed in range(3):
        rig = Rig(subject, gqa(subject), [13, 9, 17], seed=seed)
        rig.run([Turn(0, 12), Turn(1, 8), Turn(2, 16)], [Turn(2, 1), Turn(0, 1), Turn(1, 1)])


def gqa_ratios(subject: Subject) -> None:
    """Query head h reads KV head h // (heads / kv_heads), for any ratio."""
    for heads, kv_heads in ((6, 2), (6, 3), (4, 1), (7, 7), (8, 4)):
        rig = Rig(subject, gqa(subject, heads, kv_heads), [7], seed=heads)
        rig.run([Turn(0, 6)], [Turn(0, 1)])


def head_dims(subject: Subject) -> None:
    """Every declared head width, or some awkward ones."""
    for width in sorted(subject.spec.capabilities.head_dims) or (8, 24, 80):
        rig = Rig(subject, gqa(subject, head_dim=width, scale=width**-0.5), [9])
        rig.run([Turn(0, 8)], [Turn(0, 1)])


def chunked_equals_whole(subject: Subject) -> None:
    """A prompt computed in chunks gives what it gives in one pass."""
    for chunk in (1, 3, 4, 7, 19):
        rig = Rig(subject, gqa(subject), [19])
        sizes = [min(chunk, 19 - start) for start in range(0, 19, chunk)]
        rig.run(*[[Turn(0, n)] for n in sizes])


def mixed_batch(subject: Subject) -> None:
    """Decode, verify and prefill rows, fresh and continued, in one ragged batch."""
    rig = Rig(subject, gqa(subject), [10, 7, 14, 9, 1, 12])
    rig.run([Turn(0, 9), Turn(1, 6), Turn(2, 9), Turn(3, 5)])
    rig.run(
        [
            Turn(0, 1),
            Turn(1, 1),
            Turn(2, 5, verify=True),
            Turn(3, 4),
            Turn(4, 1),
            Turn(5, 12),
        ]
    )


def verify_rows(subject: Subject) -> None:
    """Several draft tokens after a context see exactly what separate decodes would see."""
    most = subject.spec.capabilities.max_verify
    for drafts in (1, 2, 4, 7):
        if most is None or drafts <= most:
            rig = Rig(subject, gqa(subject), [8 + drafts + 1, 6 + drafts + 1], seed=drafts)
            rig.run([Turn(0, 8), Turn(1, 6)], [Turn(0, drafts + 1, verify=True), Turn(1, drafts + 1, verify=True)])


def window(subject: Subject) -> None:
    """A query sees itself and the window - 1 positions before it, in every phase."""
    if not subject.spec.capabilities.sliding_window:
        raise SkipCheckError("declares no sliding window")
    for width in (1, 4, 5, 8):
        rig = Rig(subject, gqa(subject, window=width), [14, 12])
        rig.run([Turn(0, 6), Turn(1, 9)], [Turn(1, 3, verify=True), Turn(0, 5)], [Turn(0, 1)], [Turn(0, 1)])
    for distance, seen in ((3, True), (4, False)):
        require(_sees(subject, 4, distance) == seen, f"window 4: a token {distance} back is {'un' * seen}seen")


def behind_window(subject: Subject) -> None:
    """Blocks wholly behind the window may be anybody's by now: their entries in the table mean nothing."""
    if not subject.spec.capabilities.sliding_window:
        raise SkipCheckError("declares no sliding window")
    rig = Rig(subject, gqa(subject, window=3), [40, 38], poison=float("nan"))
    rig.run([Turn(0, 34), Turn(1, 32)])
    for seq in range(2):
        rig.give_back(seq, max(0, rig.done[seq] - 2) // rig.layout.block_size)
    rig.run([Turn(0, 1), Turn(1, 4, verify=True)], [Turn(0, 1)], [Turn(0, 3)])


def _sees(subject: Subject, width: int, distance: int) -> bool:
    """Does changing the token `distance` back change the output of a decode?"""
    outputs: list[torch.Tensor] = []
    for change in (0.0, 1.0):
        rig = Rig(subject, gqa(subject, window=width), [10])
        for plane in rig.x[0][1:]:
            plane[9 - distance] += change
        rig.step(Turn(0, 9))
        outputs.append(rig.step(Turn(0, 1))[0])
    return not torch.equal(outputs[0], outputs[1])


def unowned_slots(subject: Subject) -> None:
    """Slots that hold no token of the sequence are never used: NaN in all of them changes nothing."""
    rig = Rig(subject, gqa(subject), [6, 11, 3], poison=float("nan"))
    rig.run([Turn(0, 5), Turn(1, 9), Turn(2, 3)], [Turn(0, 1), Turn(1, 2, verify=True)])


def write_stays_in_slots(subject: Subject) -> None:
    """`write` changes the slots of the step's tokens and nothing else."""
    rig = Rig(subject, gqa(subject), [7, 6])
    rig.step(Turn(0, 4), Turn(1, 3))
    before = {name: plane.clone() for name, plane in rig.kv.items()}
    slots = {rig.slot(0, p) for p in range(4, 7)} | {rig.slot(1, p) for p in range(3, 6)}
    rig.step(Turn(0, 3), Turn(1, 3))
    for name, plane in rig.kv.items():
        if name not in ("k", "v"):
            _stays_in_blocks(rig, name, plane, before[name], slots)
            continue
        changed = (_bytes(plane) != _bytes(before[name])).flatten(0, 1).flatten(1).any(1)
        touched = set(changed.nonzero().flatten().tolist())
        require(touched <= slots, f"plane {name}: slots {sorted(touched - slots)} were changed too")
        require(touched == slots, f"plane {name}: slots {sorted(slots - touched)} were not written")


def _stays_in_blocks(rig: Rig, name: str, plane: torch.Tensor, before: torch.Tensor, slots: set[int]) -> None:
    """A plane may order its blocks in its own way: then blocks are compared, and how much of them changed."""
    changed = (_bytes(plane) != _bytes(before)).unflatten(-1, (plane.shape[-1], -1)).any(-1).flatten(1)
    touched = set(changed.any(1).nonzero().flatten().tolist())
    owned = {slot // rig.layout.block_size for slot in slots}
    require(
        touched == owned, f"plane {name}: changed blocks {sorted(touched)}, the step's tokens are in {sorted(owned)}"
    )
    limit = len(slots) * plane.shape[2] * plane.shape[3]
    require(int(changed.sum()) <= limit, f"plane {name}: {int(changed.sum())} values were changed, tokens have {limit}")


def _bytes(plane: torch.Tensor) -> torch.Tensor:
    return plane.contiguous().view(torch.uint8)


def cache_content(subject: Subject) -> None:
    """With the plain planes k and v, the cache holds rotated keys and unchanged values."""
    rig = Rig(subject, gqa(subject, qk_norm=True), [9])
    if rig.layout.scales or set(rig.kv) != {"k", "v"}:
        raise SkipCheckError("stores its KV in a form of its own")
    rig.step(Turn(0, 5))
    rig.step(Turn(0, 4))
    want = rig.written(0)
    for name, plane, values in (("k", rig.kv["k"], want.k), ("v", rig.kv["v"], want.v)):
        got = torch.stack([plane.flatten(0, 1)[rig.slot(0, p)] for p in range(9)])
        close(got, values, rig.format, f"plane {name}")


def rope_and_norm(subject: Subject) -> None:
    """qk-norm, rotation of only the first channels, and no rotation at all."""
    half = gqa(subject).head_dim // 2
    cases: tuple[tuple[Gqa, int | None], ...] = (
        (gqa(subject, qk_norm=True), None),
        (gqa(subject), half),
        (gqa(subject, rope=None), None),
        (gqa(subject, qk_norm=True), half),
    )
    for spec, rope_dim in cases:
        Rig(subject, spec, [9], rope_dim=rope_dim).run([Turn(0, 4)], [Turn(0, 4)], [Turn(0, 1)])


def score_options(subject: Subject) -> None:
    """Scale, soft cap and sinks are applied, unless the plugin's probe rejects the model."""
    tried = 0
    for spec in (gqa(subject, scale=0.7), gqa(subject, softcap=1.5), gqa(subject, sinks=True)):
        if not isinstance(subject.cls.probe(_context(subject, spec)), Reject):
            Rig(subject, spec, [9]).run([Turn(0, 5)], [Turn(0, 3)], [Turn(0, 1)])
            tried += 1
    if not tried:
        raise SkipCheckError("probe rejects scale, soft cap and sinks")


def _context(subject: Subject, attention: Gqa) -> ProbeContext:
    layer = LayerSpec(attention, DenseMlp(inner=32))
    model = ModelSpec(
        architecture="llama",
        vocab_size=64,
        hidden_size=attention.heads * attention.head_dim,
        layers=(layer,),
        ropes={"main": RopeSpec(theta=1e4, dim=attention.head_dim)},
        norm_eps=1e-6,
        trained_context=64,
        tied_embeddings=False,
    )
    rig = Rig(subject, gqa(subject), [1])
    return ProbeContext(
        architecture_name="llama",
        device=subject.device,
        dtype=rig.dtype_name,
        spec=model,
        kv_format=rig.format,
        options=subject.table,
    )


def formats(subject: Subject) -> None:
    """Every declared KV format is within its error bound and really stored in it."""
    for format in sorted(subject.spec.capabilities.kv_formats):
        rig = Rig(subject, gqa(subject), [9], format=format)
        rig.run([Turn(0, 8)], [Turn(0, 1)])


def long_context(subject: Subject) -> None:
    """Contexts over several hundred keys, at and around the places where a scan may be cut."""
    for length in (255, 256, 257, 300):
        rig = Rig(subject, gqa(subject, 2, 1), [length + 1])
        rig.step(Turn(0, length))
        rig.run([Turn(0, 1)])


def inputs_kept(subject: Subject) -> None:
    """The projections handed in are not changed."""
    rig = Rig(subject, gqa(subject, qk_norm=True), [6])
    rig.step(Turn(0, 6))
    same = all(torch.equal(a, b) for a, b in zip(rig.handed, rig.x[0], strict=True))
    require(same, "q, k or v were changed in place")


def repeatable(subject: Subject) -> None:
    """The same step gives the same bits again."""
    runs = [Rig(subject, gqa(subject), [9, 12]).step(Turn(0, 9), Turn(1, 12)) for _ in range(2)]
    same = all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    require(same, "two runs of one step differ")


CHECKS: tuple[Check, ...] = (
    layout,
    single_token,
    page_multiples,
    scattered_tables,
    gqa_ratios,
    head_dims,
    chunked_equals_whole,
    mixed_batch,
    verify_rows,
    window,
    behind_window,
    unowned_slots,
    write_stays_in_slots,
    cache_content,
    rope_and_norm,
    score_options,
    formats,
    long_context,
    inputs_kept,
    repeatable,
)
