"""Arrivals: the wanted rate, the wanted lengths, traces read and repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from schemas.errors import SourceError
from streams.simulate.workload import Arrival, PoissonWorkload, TraceWorkload, read_trace

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.9799600,110,27
"""


def test_poisson_has_rate_and_lengths() -> None:
    workload = PoissonWorkload(50.0, np.random.default_rng(1), prompt_tokens=700, output_tokens=90)
    arrivals = [workload.next() for _ in range(20_000)]
    gaps_s = np.array([a.gap_s for a in arrivals])
    assert gaps_s.mean() == pytest.approx(0.02, rel=0.03)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.05)
    assert np.median([a.prompt_tokens for a in arrivals]) == pytest.approx(700, rel=0.03)
    assert np.median([a.output_tokens for a in arrivals]) == pytest.approx(90, rel=0.03)


def test_trace_keeps_gaps_and_lengths(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    arrivals = read_trace(tmp_path / "t.csv")
    assert [(a.prompt_tokens, a.output_tokens) for a in arrivals] == [(4808, 10), (3180, 8), (110, 27)]
    assert [a.gap_s for a in arrivals] == pytest.approx([1.0, 0.052, 1.948])


def test_trace_is_repeated_and_scaled() -> None:
    recorded = [Arrival(1.0, 10, 1), Arrival(3.0, 20, 2)]
    workload = TraceWorkload(recorded)
    assert [workload.next() for _ in range(4)] == recorded * 2
    fast = TraceWorkload(recorded, rate_per_s=5.0)
    assert np.mean([fast.next().gap_s for _ in range(100)]) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", r":2: not a trace row .*TIMESTAMP"),
        (TRACE.replace("3180", "x"), r":3: not a trace row"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "at least two requests"),
    ],
)
def test_bad_trace_says_where(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SourceError, match=says):
        read_trace(tmp_path / "t.csv")


def test_missing_trace_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
