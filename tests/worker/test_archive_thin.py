"""Which windows are stored: whatever has something to tell, the rest once a minute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.windows import WindowBlock, encode_windows
from streams.worker.archive_rows import ArchiveRows
from streams.worker.archive_thin import Thinner

T_MS = 1_796_000_000_000 // 60_000 * 60_000
NODES = ["a", "b", "c"]


def block(
    tick: int, status: list[str] | None = None, nodes: list[str] | None = None, pool: str = "p", **flags: Any
) -> WindowBlock:
    nodes = NODES if nodes is None else nodes
    columns = {"node": nodes, "sli": ["ttft_s"] * len(nodes), "status": status or ["OK"] * len(nodes), **flags}
    return WindowBlock(pool=pool, t_ms=T_MS + 5000 * tick, n=len(nodes), columns=columns)


def kept(thinner: Thinner, *blocks: WindowBlock) -> list[list[int]]:
    return [thinner.keep(b).tolist() for b in blocks]


def test_quiet_series_are_kept_in_the_first_tick_of_each_minute() -> None:
    thinner = Thinner(60.0)
    assert [len(thinner.keep(block(tick))) for tick in range(25)] == [3] + [0] * 11 + [3] + [0] * 11 + [3]


@pytest.mark.parametrize("flag", ["alarm", "improved", "mix_alarm", "tail_above"])
def test_a_series_with_something_to_tell_is_kept_every_tick(flag: str) -> None:
    thinner, raised = Thinner(60.0), {flag: np.array([False, True, False])}
    assert kept(thinner, block(0), block(1, **raised), block(2, **raised), block(3)) == [[0, 1, 2], [1], [1], []]


def test_a_slow_series_is_kept_every_tick_and_so_is_its_recovery() -> None:
    thinner, slow = Thinner(60.0), ["OK", "OK", "DEGRADED"]
    assert kept(thinner, block(0), block(1, slow), block(2, slow), block(3), block(4)) == [[0, 1, 2], [2], [2], [2], []]


def test_a_new_series_is_kept_and_the_others_are_not_mixed_up() -> None:
    thinner = Thinner(60.0)
    one = block(0, ["OK", "LEARNING", "OK"])
    two = block(1, ["OK", "OK", "LEARNING", "OK"], ["a", "new", "b", "c"])
    assert kept(thinner, one, two) == [[0, 1, 2], [1]]


def test_pools_have_minutes_of_their_own() -> None:
    thinner = Thinner(60.0)
    assert kept(thinner, block(0), block(1, pool="q"), block(2), block(2, pool="q")) == [[0, 1, 2], [0, 1, 2], [], []]


def test_zero_keeps_everything() -> None:
    assert [len(Thinner(0.0).keep(block(tick))) for tick in range(5)] == [3] * 5


@given(st.lists(st.lists(st.sampled_from(["OK", "DEGRADED", "IDLE"]), min_size=3, max_size=3), min_size=1, max_size=40),
       st.integers(0, 39))  # fmt: skip
def test_a_new_owner_keeps_what_the_former_would_have_kept(history: list[list[str]], start: int) -> None:
    blocks = [block(tick, status) for tick, status in enumerate(history)]
    whole, late = Thinner(60.0), Thinner(60.0)
    by_first_owner = kept(whole, *blocks)
    for expected, got in zip(by_first_owner[start:], kept(late, *blocks[start:]), strict=True):
        assert set(expected) <= set(got)


def test_statuses_can_be_told_at_every_tick_from_what_is_kept() -> None:
    rng = np.random.default_rng(3)
    thinner, told = Thinner(60.0), {}
    for tick in range(200):
        status = [str(s) for s in rng.choice(["OK", "OK", "OK", "IDLE", "DEGRADED"], 3)]
        now = block(tick, status)
        for row in thinner.keep(now).tolist():
            told[NODES[row]] = status[row]
        assert [told[node] for node in NODES] == status


def test_rows_keep_their_place_in_the_message_and_give_an_hour_each() -> None:
    rows = ArchiveRows("slodrift.windows", 2, quiet_s=60.0)

    class Record:
        def __init__(self, offset: int, tick: int, status: list[str]) -> None:
            columns = {
                "node": NODES, "sli": ["ttft_s"] * 3, "status": status, "n": np.array([1, 2, 3], np.uint32),
                "log_evidence": np.array([np.nan, 1.0, 5.0], np.float32), "log_threshold": np.full(3, 2.0, np.float32),
            }  # fmt: skip
            self.offset, self.value = offset, encode_windows("p", T_MS + 5000 * tick, columns)

    rows.rows(Record(7, 0, ["OK"] * 3))
    assert rows.rows(Record(8, 1, ["OK"] * 3)) == []
    (windows, columns), (hours, folded) = rows.rows(Record(9, 2, ["OK", "IDLE", "DEGRADED"]))
    assert (windows, hours) == ("windows", "window_hours")
    assert (columns["node"], columns["n"], columns["src_idx"], columns["src_offset"]) == (["b", "c"], [2, 3], [1, 2], [9, 9])
    assert folded["t"] == [(T_MS + 10_000) // 3_600_000 * 3_600_000] * 2
    assert (folded["worst"], folded["evidence_margin"], folded["src_idx"]) == ([3, 6], [-1.0, 3.0], [1, 2])
