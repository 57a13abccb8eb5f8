"""Slices of event time hold everything once, in order, and never more than a slice of progress."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.framer_time import time_slices
from streams.framing import EventFramer, Framed

T0_S = 1_767_225_600.0


def framed(times: list[float], every_fifth_is_state: bool = True) -> Framed:
    lines = []
    for i, t in enumerate(times):
        kind = "node" if every_fifth_is_state and i % 5 == 4 else "request"
        more = {"outcome": "ok", "ttft_s": 0.1} if kind == "request" else {"running": 1}
        lines.append(json.dumps({"kind": kind, "ts": T0_S + t, "pool": f"p{i % 2}", "node": f"n{i % 3}", **more}).encode())
    return EventFramer().feed(lines, range(100, 100 + len(lines)))


@given(st.lists(st.floats(0, 30), max_size=60))
def test_every_row_and_event_once_and_offsets_keep_growing(times: list[float]) -> None:
    whole = framed(times)
    parts = list(time_slices(whole))
    for pool, rows in whole.pools.items():
        mine = [p.pools[pool] for p in parts if pool in p.pools]
        assert [o for p in mine for o in p.row_offset] == rows.row_offset.tolist()
        assert [o for p in mine for o in p.event_offset] == rows.event_offset
        assert [e for p in mine for e in p.events] == rows.events
        assert np.array_equal(np.concatenate([p.batch.ts_ns for p in mine]), rows.batch.ts_ns)
        for part in mine:
            progress = np.maximum.accumulate(part.batch.ts_ns) // 10**9
            assert len(progress) == 0 or len(set(progress[1:].tolist())) <= 1


def test_backlog_of_minutes_is_cut_and_a_live_batch_is_not() -> None:
    assert len(list(time_slices(framed([i * 0.5 for i in range(400)])))) >= 150
    live = framed([10.1 + i * 0.001 for i in range(400)])
    assert [p.pools.keys() for p in time_slices(live)] == [live.pools.keys()]
    assert list(time_slices(Framed())) == []


def test_events_come_with_the_requests_of_their_time() -> None:
    parts = list(time_slices(framed([float(i) for i in range(40)])))
    for part in parts:
        for rows in part.pools.values():
            assert all(abs(e.ts - rows.batch.ts_ns.max() / 1e9) <= 4 for e in rows.events)


def test_one_wild_time_does_not_end_the_cutting() -> None:
    times = [float(i) for i in range(60)]
    times[3] = 5e6
    assert len(list(time_slices(framed(times, every_fifth_is_state=False)))) >= 25
