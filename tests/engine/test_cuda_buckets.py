"""Which steps are captured."""

from __future__ import annotations

import pytest

from inferd.engine.cuda_buckets import Bucket, choose, sequence_counts
from inferd.plugin.types import StepCounts


@pytest.mark.parametrize("most", [1, 2, 3, 8, 16, 17, 64, 100, 256])
def test_every_count_has_a_bucket_with_little_padding(most: int) -> None:
    sizes = sequence_counts(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    for count in range(1, most + 1):
        size = next(s for s in sizes if s >= count)
        assert size - count < 16
        assert size <= 2 * count


def test_the_bucket_of_a_step() -> None:
    sizes = sequence_counts(32)

    def of(decode: int, verify: int, prefill: int, lens: list[int]) -> Bucket | None:
        return choose(StepCounts(decode, verify, prefill), lens, sizes, max_draft=4, token_limit=100)

    assert of(3, 0, 0, [1, 1, 1]) == Bucket(4, 1)
    assert of(17, 0, 0, [1] * 17) == Bucket(32, 1)
    assert of(1, 2, 0, [1, 3, 2]) == Bucket(4, 5)
    assert of(1, 0, 1, [1, 30]) is None
    assert of(0, 1, 0, [6]) is None, "more rows than drafts"
    assert of(1, 31, 0, [1] + [5] * 31) is None, "160 rows do not fit the buffers"
    assert of(33, 0, 0, [1] * 33) is None
    assert of(0, 0, 0, []) is None
