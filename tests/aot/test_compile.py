"""Every kernel compiles for every architecture: a cubin, no spills, shared memory that fits, the right instructions."""

from __future__ import annotations

import json
import re

import pytest

from inferd_kernels.triton.tiling import ARCHITECTURES, FOLDER, architecture, interpreted, overlay, read
from tests.aot.compiling import SHARED_LIMIT, Compiled, calls_of, compile_call
from tests.aot.launches import DEFAULT, VARIANTS, Launch, tiles_of

pytestmark = [
    pytest.mark.skipif(interpreted(), reason="the interpreter compiles nothing"),
    pytest.mark.timeout(300),
]

MATRIX = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
"""The matrix instruction of an architecture where a tile is wide enough for it."""
QUICK = (80, 90, 100)


def compiled(launch: Launch, cc: int) -> list[Compiled]:
    tiles = tiles_of(launch, read(f"sm_{cc}"))
    return [compile_call(call, cc) for call in calls_of(lambda: launch.run(tiles))]


def check(launch: Launch, cc: int, *, spills: bool = False) -> None:
    if launch.fp8 and cc < 89:
        pytest.skip("no fp8 types before sm_89")
    results = compiled(launch, cc)
    for result in results:
        assert len(result.cubin) > 0
        assert result.shared <= SHARED_LIMIT[cc], f"{result.name}: {result.shared} bytes of shared memory"
        assert result.spills == 0 or spills, f"{result.name}: {result.spills} bytes spilled"
    if launch.name == "sampler":
        # Tokens are those of torch only if every step rounds as torch rounds it.
        assert not re.search(r"fma\.|div\.(full|approx)", results[0].ptx)
    if launch.matrix:
        ptx = next(r.ptx for r in results if r.name.startswith(("attn_prefill", "attn_decode", "gemm", "grouped")))
        # Few rows take the older instruction everywhere: the newer ones need 64.
        older = not wide(launch) or (launch.integer and cc == 100)
        assert MATRIX[cc] in ptx or ("mma.sync" in ptx and older), f"{launch.name}: no {MATRIX[cc]}"
        pipelined = (tiles_of(launch, read(f"sm_{cc}")) or {}).get("num_stages", 2) > 1
        assert "cp.async" in ptx or not pipelined, f"{launch.name}: no asynchronous copies"


def wide(launch: Launch) -> bool:
    return launch.kernel == "attn_prefill" or launch.case in ("large", "many")


@pytest.mark.parametrize("cc", QUICK)
@pytest.mark.parametrize("launch", DEFAULT, ids=lambda launch: launch.name)
def test_the_default_configuration(launch: Launch, cc: int) -> None:
    check(launch, cc)


@pytest.mark.full
@pytest.mark.parametrize("launch", DEFAULT, ids=lambda launch: launch.name)
def test_the_default_configuration_of_ada(launch: Launch) -> None:
    check(launch, 89)


@pytest.mark.full
@pytest.mark.parametrize("cc", ARCHITECTURES)
@pytest.mark.parametrize("launch", VARIANTS, ids=lambda launch: launch.name)
def test_other_shapes_and_formats(launch: Launch, cc: int) -> None:
    check(launch, cc, spills=True)


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


def test_devices_get_the_table_of_their_architecture() -> None:
    assert [architecture(cc) for cc in (80, 86, 89, 90, 100, 120)] == [
        "sm_80", "sm_80", "sm_89", "sm_90", "sm_100", "sm_100",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"7\.5 is too old"):
        architecture(75)
    laid = overlay({"a": {"x": {"n": 1}, "y": {"n": 2}}}, {"a": {"x": {"n": 3}}, "b": {"z": {"n": 4}}})
    assert laid == {"a": {"x": {"n": 3}, "y": {"n": 2}}, "b": {"z": {"n": 4}}}
