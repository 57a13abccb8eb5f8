"""The benchmark of hot pools: what it sends, and that two judges of two cells conclude what one judge would."""

from __future__ import annotations

import pytest

from bench.hot_pool import CELLS, POOL, SLOW_FROM, _frames, run
from schemas.cells import cell_of
from schemas.frame import RequestFrame, decode_frame


def test_cells_get_the_frames_of_their_nodes_and_each_has_a_slow_one() -> None:
    whole, split = _frames(SLOW_FROM + 1, 1, 1), _frames(SLOW_FROM + 1, 1, CELLS)
    slow: dict[str, set[str]] = {}
    for of_pool, of_cells in zip(whole[-1], split[-1], strict=True):
        a, b = decode_frame(of_pool[1]), decode_frame(of_cells[1])
        assert isinstance(a, RequestFrame)
        assert isinstance(b, RequestFrame)
        assert (a.header.pool, b.header.pool) == (POOL, of_cells[0]) == (of_pool[0], cell_of(POOL, b.header.node, CELLS))
        assert (a.batch.latency_s == b.batch.latency_s).all()
        if b.batch.latency_s[0].mean() > 0.5:
            slow.setdefault(b.header.pool, set()).add(b.header.node)
    assert [len(nodes) for nodes in slow.values()] == [1] * CELLS


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.timeout(300)
def test_two_judges_of_two_cells_conclude_what_one_would() -> None:
    report = run(0, quick=True)
    assert [row[0] for row in report.rows] == ["whole, one judge", "whole, two judges", "two cells, two judges"]
    assert report.rows[1][4] in ("12,000, 0", "0, 12,000")
    assert report.rows[2][4] == "6,000, 6,000"
    assert all(holds for _, holds in report.bars), report.bars
