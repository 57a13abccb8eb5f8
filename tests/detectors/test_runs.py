"""Sums and maxima by runs are those row by row."""

import numpy as np
import pytest

from detectors.runs import LONG, raise_to, run_starts, sum_into

NEVER = np.iinfo(np.int64).min


@pytest.mark.parametrize("length", [1, 3, LONG, 40])
@pytest.mark.parametrize("seed", range(5))
def test_as_row_by_row(length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = np.repeat(rng.integers(0, 7, 50), length)
    values = rng.integers(-30_000, 30_000, len(group)).astype(np.int16)
    starts = run_starts(group)
    assert (starts is not None) == (length >= LONG)
    total, least = np.arange(9), np.full(9, NEVER)
    sum_into(total, group, values, starts)
    raise_to(least, group, values.astype(np.int64), starts)
    for g in range(9):
        mine = values[group == g]
        assert total[g] == g + mine.sum(dtype=np.int64)
        assert least[g] == (mine.max() if len(mine) else NEVER)


def test_nothing() -> None:
    empty = np.zeros(0, np.int64)
    out = np.ones(2, np.int64)
    assert run_starts(empty) is None
    sum_into(out, empty, empty, None)
    raise_to(out, empty, empty, None)
    assert out.tolist() == [1, 1]
