"""Duplicates are dropped exactly; nothing else is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.batch import UNKNOWN_TOKENS, RequestBatch
from schemas.frame import EventFrame, FrameHeader, RequestFrame
from schemas.telemetry import DeployEvent, NodeEvent
from streams.worker.dedup import WINDOW, DuplicateFilter


def rows(offsets: list[int] | None, *, node: str = "n1", boot_id: str = "", seq: int = 0, n: int = 1) -> RequestFrame:
    n = n if offsets is None else len(offsets)
    unknown = np.full(n, UNKNOWN_TOKENS, np.uint32)
    batch = RequestBatch(
        pool="p", nodes=[node], node=np.zeros(n, np.uint32), ts_ns=np.zeros(n, np.int64), latency_s=np.zeros((4, n), np.float32),
        outcome=np.zeros(n, np.uint8), prompt_tokens=unknown, output_tokens=unknown, cached_tokens=unknown, batch_size=unknown,
        probe=np.zeros(n, np.int8), adapters=[], adapter=unknown, tenants=[], tenant=unknown, session=unknown,
        kv_mismatch=np.zeros(n, np.bool_),
    )  # fmt: skip
    header = FrameHeader(pool="p", node=node, boot_id=boot_id, seq=seq, origin=None if offsets is None else "src/0")
    return RequestFrame(header=header, batch=batch, origin_offset=None if offsets is None else np.array(offsets, np.int64))


def kept(seen: DuplicateFilter, offsets: list[int], node: str = "n1") -> list[int]:
    fresh = seen.requests(rows(offsets, node=node))
    return offsets if fresh is None else [o for o, f in zip(offsets, fresh, strict=True) if f]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True), st.randoms(use_true_random=False))
def test_any_framing_and_redelivery_of_growing_offsets_counts_each_row_once(offsets: list[int], rng: random.Random) -> None:
    offsets.sort()
    seen, got, start = DuplicateFilter(), [], 0
    while start < len(offsets):
        end = rng.randint(start + 1, len(offsets))
        got += kept(seen, offsets[start:end])
        start = rng.randint(max(0, end - 7), end)  # the framer starts again somewhat before its last frame
        if end == len(offsets):
            break
    assert got == offsets
    assert seen.duplicates >= 0


def test_nodes_have_marks_of_their_own() -> None:
    seen = DuplicateFilter()
    assert kept(seen, [5, 9], "n1") == [5, 9]
    assert kept(seen, [6, 7], "n2") == [6, 7]
    assert kept(seen, [5, 9, 10], "n1") == [10]
    assert seen.duplicates == 2


@given(st.lists(st.integers(0, 40), max_size=80))
def test_sequence_numbers_in_any_order_count_once(seqs: list[int]) -> None:
    seen = DuplicateFilter()
    got = [s for s in seqs if seen.requests(rows(None, boot_id="b", seq=s)) is None]
    assert sorted(got) == sorted(set(seqs))
    assert seen.duplicates == len(seqs) - len(set(seqs))


def test_number_below_the_window_is_refused_and_counted_apart() -> None:
    seen = DuplicateFilter()
    assert seen.requests(rows(None, boot_id="b", seq=5000, n=3)) is None
    assert seen.requests(rows(None, boot_id="b", seq=5000 - WINDOW + 1, n=3)) is None
    fresh = seen.requests(rows(None, boot_id="b", seq=5000 - WINDOW, n=3))
    assert fresh is not None
    assert not fresh.any()
    assert (seen.duplicates, seen.too_old) == (0, 3)


def test_new_boot_starts_again_and_no_identity_is_accepted() -> None:
    seen = DuplicateFilter()
    assert seen.requests(rows(None, boot_id="b1", seq=7)) is None
    assert seen.requests(rows(None, boot_id="b2", seq=0)) is None
    assert seen.requests(rows(None)) is None
    assert seen.requests(rows(None)) is None


def test_events_have_marks_apart_from_requests() -> None:
    seen = DuplicateFilter()
    assert kept(seen, [12]) == [12]
    events = [NodeEvent(ts=1.0, pool="p", node="n1"), DeployEvent(ts=1.0, pool="p"), NodeEvent(ts=2.0, pool="p", node="n1")]
    header = FrameHeader(pool="p", node="", origin="src/0")
    assert seen.events(EventFrame(header=header, events=events, offsets=[10, 11, 13])) == events
    assert seen.events(EventFrame(header=header, events=events, offsets=[11, 12, 14])) == [events[1], events[2]]


@pytest.mark.parametrize("when", range(0, 12, 3))
def test_marks_survive_a_snapshot(when: int) -> None:
    seen = DuplicateFilter()
    frames = [rows([i, i + 1], node=f"n{i % 3}") for i in range(6)] + [rows(None, boot_id="b", seq=i) for i in (3, 1, 9)]
    for frame in frames[:when]:
        seen.requests(frame)
    again = DuplicateFilter.load(seen.dump())
    for frame in frames:
        a, b = seen.requests(frame), again.requests(frame)
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)
