"""Which clock a host's reader goes by."""

from __future__ import annotations

import random

import pytest
from slodrift_client.gate import Counters
from slodrift_client.reader import Reader
from slodrift_client.view import Limits, PoolView

from schemas.contract import Entry, build, encode

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("jump_s", [-1e6, 0.0, 1e6])
def test_age_and_ends_are_counted_by_the_monotonic_clock_whatever_the_wall_clock_does(jump_s: float) -> None:
    clock, wall = [100.0], [NOW_MS / 1000]
    view = PoolView("f", "p", Limits(), rng=random.Random(1))
    reader = Reader(
        {"p": view}, Counters(), state_dir=None, clock=lambda: clock[0], wall=lambda: wall[0], rng=random.Random(1)
    )  # fmt: skip
    away = Entry(
        scope="node", subject="n1", state="OPEN", version=(1, 1, 1), tx="t", opened_ms=NOW_MS, not_after_ms=NOW_MS + 300_000
    )
    head, snapshot = build(
        fleet="f", pool="p", version=(1, 1, 1), entries=[away], n_eligible=100, cap=10, mode="enforce", issued_ms=NOW_MS
    )
    assert reader.take_heads([encode(head)]) == ["p"]
    reader.take_pair("p", encode(head), snapshot)
    wall[0] += jump_s
    assert reader.take_heads([encode(head)]) == []
    for later_s, source, state in (
        (0.0, "fresh", "OPEN"),
        (4.0, "late", "OPEN"),
        (59.0, "stale", "OPEN"),
        (91.0, "stale", "CLOSED"),
    ):
        now = 100.0 + later_s
        assert (view.age_s(now), view.source(now), view.held["n1"].state_at(now)) == (later_s, source, state)
