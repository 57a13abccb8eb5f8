"""Constant columns are what the same column as rows would be."""

import numpy as np
import pytest

from streams.judge.columns import constant, is_constant, join


def test_constant_is_read_only_and_small() -> None:
    column = constant(np.uint16(7), 1000)
    assert column.tolist() == [7] * 1000
    assert is_constant(column)
    assert is_constant(column[3:9])
    assert not is_constant(column[np.arange(5)])
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


@pytest.mark.parametrize(
    "parts",
    [
        [constant(np.uint32(4), 5), constant(np.uint32(4), 6)],
        [constant(np.uint32(4), 5), constant(np.uint32(3), 6)],
        [constant(np.uint32(4), 5), np.array([4, 9], np.uint32)],
        [constant(np.uint32(4), 1), constant(np.uint32(4), 3)],
        [constant(np.uint32(4), 3), np.zeros(0, np.uint32)],
        [np.array([4], np.uint32), constant(np.uint32(4), 3)],
    ],
)
def test_join_is_concatenate(parts: list[np.ndarray]) -> None:
    joined, plain = join(parts), np.concatenate(parts)
    assert joined.dtype == plain.dtype
    np.testing.assert_array_equal(joined, plain)
