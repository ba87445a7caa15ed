"""Every kernel compiles for every architecture: a cubin, no spills, shared memory that fits, the right instructions."""

from __future__ import annotations

import json
import re

import pytest

from inferd_kernels.triton.tiling import ARCHITECTURES, FOLDER, architecture, interpreted, overlay, read
from tests.aot.compiling import SHARED_LIMIT, calls_of, compile_call
from tests.aot.launches import DEFAULT, VARIANTS, Launch, tiles_of

pytestmark = [
    pytest.mark.skipif(interpreted(), reason="the interpreter compiles nothing"),
    pytest.mark.timeout(300),
]

MATRIX = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
"""The matrix instruction of an architecture where a tile is wide enough for it."""
QUICK = (80, 90, 100)


def of_architectures(*ccs: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cc", ccs, ids="sm_{}".format)


def of_launches(*launches: Launch) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("launch", launches, ids=lambda launch: launch.name)


def matrix_instruction(launch: Launch, cc: int) -> str:
    """Return the instruction of the main kernel."""
    older = launch.few or (launch.integer and cc == 100)
    return "mma.sync" if older else MATRIX[cc]


def check(launch: Launch, cc: int, *, stack: int = 0) -> None:
    if launch.fp8 and cc < 89:
        pytest.skip("no fp8 types before sm_89")
    if launch.tma and cc < 90:
        pytest.skip("no tensor memory accelerator before sm_90")
    tiles = tiles_of(launch, read(f"sm_{cc}"))
    results = [compile_call(call, cc) for call in calls_of(lambda: launch.run(tiles))]
    for result in results:
        assert len(result.cubin) > 0
        assert result.shared <= SHARED_LIMIT[cc], f"{result.name}: {result.shared} bytes of shared memory"
        assert result.stack <= stack, f"{result.name}: {result.stack} bytes spilled"
    if launch.name == "sampler":
        # Tokens are those of torch only if every step rounds as torch rounds it.
        assert not re.search(r"fma\.|div\.(full|approx)", results[0].ptx)
    if launch.matrix:
        assert tiles is not None
        ptx = next(r.ptx for r in results if r.name.startswith(("attn_prefill", "attn_decode", "gemm", "grouped")))
        assert matrix_instruction(launch, cc) in ptx, f"{launch.name}: no {matrix_instruction(launch, cc)}"
        assert not launch.tma or "cp.async.bulk.tensor" in ptx, f"{launch.name}: no copies of boxes"
        assert "cp.async" in ptx or tiles["num_stages"] == 1, f"{launch.name}: no asynchronous copies"


@of_architectures(*QUICK)
@of_launches(*DEFAULT)
def test_the_default_configuration(launch: Launch, cc: int) -> None:
    check(launch, cc)


@pytest.mark.full
@of_architectures(89)
@of_launches(*DEFAULT)
def test_the_default_configuration_of_ada(launch: Launch, cc: int) -> None:
    check(launch, cc)


@pytest.mark.full
@of_architectures(*ARCHITECTURES)
@of_launches(*VARIANTS)
def test_other_shapes_and_formats(launch: Launch, cc: int) -> None:
    """Which may spill a few bytes, as no default does."""
    check(launch, cc, stack=64)


def test_tables_name_every_kernel() -> None:
    """So that no launch on a device falls through; the interpreter's table knows the same kernels."""
    kernels = {launch.kernel for launch in (*DEFAULT, *VARIANTS) if launch.kernel}
    for cc in ARCHITECTURES:
        table = read(f"sm_{cc}")
        assert set(table) >= kernels
        for launch in (*DEFAULT, *VARIANTS):
            if launch.kernel:
                assert tiles_of(launch, table)
        assert set(read("interpreter")) == set(table)
    for path in FOLDER.glob("*.json"):
        assert json.loads(path.read_text())


@of_architectures(*ARCHITECTURES)
def test_every_shipped_configuration_is_compiled(cc: int) -> None:
    """By a launch that names its case, or falls back to it."""
    table, tried = read(f"sm_{cc}"), set()
    for launch in (*DEFAULT, *VARIANTS):
        if launch.kernel:
            tried.add((launch.kernel, launch.case if launch.case in table[launch.kernel] else "default"))
    assert {(kernel, case) for kernel, cases in table.items() for case in cases} == tried


def test_other_tables_belong_to_the_interpreter() -> None:
    """A table of a device that is shipped has to be compiled too."""
    assert {path.stem for path in FOLDER.glob("*.json")} == {"interpreter", *(f"sm_{cc}" for cc in ARCHITECTURES)}


def test_devices_get_the_table_of_their_architecture() -> None:
    assert [architecture(cc) for cc in (80, 86, 89, 90, 100, 120)] == [
        "sm_80", "sm_80", "sm_89", "sm_90", "sm_100", "sm_100",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"7\.5 is too old"):
        architecture(75)
    laid = overlay({"a": {"x": {"n": 1}, "y": {"n": 2}}}, {"a": {"x": {"n": 3}}, "b": {"z": {"n": 4}}})
    assert laid == {"a": {"x": {"n": 3}, "y": {"n": 2}}, "b": {"z": {"n": 4}}}
