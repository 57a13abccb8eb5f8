"""The benchmark of sketch frames measures what it says: the same requests both ways, and windows that are compared."""

from __future__ import annotations

import numpy as np

from bench.sketch import _same, measure


def test_a_small_case_saves_bytes_and_changes_no_window() -> None:
    case = measure(1000, 3, 1, alike=True)
    assert case.same
    assert case.rows_a_frame < 500
    assert 20 < case.bytes_raw < 40
    assert case.bytes_sketch < case.bytes_raw / 2
    assert min(case.judge_raw_ns, case.judge_sketch_ns, case.node_raw_ns, case.node_sketch_ns) > 0


def test_windows_that_differ_are_told() -> None:
    columns = {"node": ["a"], "n": np.array([3]), "n_tick": np.array([3])}
    columns |= {name: np.array([np.nan]) for name in ("p999_s", "p999_lo_s", "p999_hi_s")}
    assert _same([columns], [dict(columns)])
    assert not _same([columns], [columns | {"n": np.array([4])}])
    assert not _same([columns], [])
    assert not _same([], [])
