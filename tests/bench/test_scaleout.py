"""Two judges, a third, and one killed: no tick lost, none that differs; here on the mock cluster."""

from __future__ import annotations

import pytest

from bench.scaleout import run


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.timeout(300)
def test_judges_that_come_and_go_lose_nothing() -> None:
    report = run(0, quick=True)
    assert [row[0] for row in report.rows] == ["two judges", "a third joins", "the first is killed"]
    assert all(holds for _, holds in report.bars), report.bars
