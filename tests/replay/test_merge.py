"""Slices: cut by event time, the same however the input is chunked, merged over inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streams.framing import EventFramer, Framed
from streams.sources.merge import Slice, Slicer, merged

T0 = 1_767_225_600.0


def request(ts: float, **fields: Any) -> bytes:
    return json.dumps({"kind": "request", "ts": ts, "pool": "p", "node": "n", "outcome": "ok", "ttft_s": 0.2} | fields).encode()


def framed(lines: list[bytes], size: int = 4096) -> Iterator[Framed]:
    framer = EventFramer()
    for i in range(0, len(lines), size):
        yield framer.feed(lines[i : i + size], range(i, i + len(lines[i : i + size])))


def content(slices: Iterator[Slice]) -> list[tuple[int, str, int]]:
    """(slice, pool, offset) of every event and refusal."""
    seen = []
    for part in slices:
        for pool, rows in part.pools.items():
            seen += [(part.number, pool, offset) for offset in (*rows.row_offset.tolist(), *rows.event_offset)]
        seen += [(part.number, "", reject.offset) for reject in part.rejects]
    return seen


def jumbled(n: int = 400, seed: int = 1) -> list[bytes]:
    """Several pools, jitter within 3 s, rubbish, state events, two wild timestamps."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        ts = T0 + i * 0.7 + float(rng.uniform(-3, 0))
        if i % 29 == 7:
            lines.append(b"rubbish")
        elif i % 13 == 5:
            lines.append(json.dumps({"kind": "node", "ts": ts, "pool": f"p{i % 2}", "node": "n"}).encode())
        else:
            lines.append(request(ts + (86400 if i in (100, 101) else 0), pool=f"p{i % 3}"))
    return lines


@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunking_changes_nothing(size: int) -> None:
    lines = jumbled()
    whole = content(Slicer("x", 5.0).slices(framed(lines)))
    assert len(whole) == len(lines)
    assert sorted(content(Slicer("x", 5.0).slices(framed(lines, size)))) == sorted(whole)


def test_numbers_grow_and_offsets_stay_in_order_between_slices() -> None:
    seen = content(Slicer("x", 5.0).slices(framed(jumbled())))
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(numbers)
    last: dict[int, int] = {}
    for number, _, offset in seen:
        last[number] = max(offset, last.get(number, 0))
    assert list(last.values()) == sorted(last.values())


def test_wild_timestamps_do_not_move_time() -> None:
    lines = [request(T0 + i + (86400 if i in (50, 51, 52) else 0)) for i in range(100)]
    slicer = Slicer("x", 5.0)
    assert max(number for number, _, _ in content(slicer.slices(framed(lines)))) == (T0 + 95) // 5
    assert slicer.stats.late == 0


def test_a_gap_is_crossed_at_once() -> None:
    lines = [request(T0 + i) for i in range(20)] + [request(T0 + 86400 + i) for i in range(20)]
    parts = list(Slicer("x", 5.0).slices(framed(lines)))
    assert len({part.number for part in parts}) == 8


def test_late_events_are_counted() -> None:
    lines = (
        [request(T0 + 100 + i) for i in range(50)]
        + [request(T0 + 130), request(T0 + 145)]
        + [request(T0 + 150 + i) for i in range(9)]
    )
    slicer = Slicer("x", 5.0, lateness_s=10.0)
    content(slicer.slices(framed(lines)))
    assert slicer.stats.late == 1


def test_concatenated_recordings_start_over() -> None:
    lines = [request(T0 + 3600 + i, pool="a") for i in range(50)] + [request(T0 + i, pool="b") for i in range(50)]
    slicer = Slicer("x", 5.0)
    numbers = [number for number, pool, _ in content(slicer.slices(framed(lines))) if pool == "b"]
    assert len(set(numbers)) == 10
    assert slicer.stats.late == 0


def test_two_inputs_are_merged_by_time() -> None:
    a = [request(T0 + i, node="a") for i in range(0, 100, 2)]
    b = [request(T0 + i, node="b") for i in range(1, 100, 2)]
    parts = list(merged([Slicer("a", 5.0).slices(framed(a)), Slicer("b", 5.0).slices(framed(b, 3))]))
    assert [part.number for part in parts] == sorted(part.number for part in parts)
    times = np.concatenate([part.pools["p"].batch.ts_ns for part in parts])
    assert len(times) == 100
    assert (np.maximum.accumulate(times) - times).max() <= 5e9


def test_a_wild_timestamp_in_one_input_does_not_hold_it_back() -> None:
    a = [request(T0 + i + (1e6 if i == 10 else 0)) for i in range(100)]
    b = [request(T0 + i) for i in range(100)]
    parts = list(merged([Slicer("a", 5.0).slices(framed(a)), Slicer("b", 5.0).slices(framed(b))]))
    assert [part.number for part in parts] == sorted(part.number for part in parts)


def test_only_rubbish() -> None:
    slicer = Slicer("x", 5.0)
    assert content(slicer.slices(framed([b"x"] * 10, 3))) == [(0, "", i) for i in range(10)]
    assert slicer.stats.events == 10


def test_a_long_stretch_of_rubbish_is_not_kept() -> None:
    chunks = framed([request(T0 + i) for i in range(9)] + [b"x"] * 3000, 1)
    slicer = Slicer("x", 5.0)
    slices = slicer.slices(chunks)
    first = next(part for part in slices if part.rejects)
    assert first.number == T0 // 5
    assert slicer.stats.events < 2000
    assert len(content(slices)) > 1000


def test_nothing() -> None:
    assert content(Slicer("x", 5.0).slices(iter(()))) == []
