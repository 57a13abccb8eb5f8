"""The pool's clock: nobody moves it alone, gaps do not stop it, and chunking does not matter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.judge.clock import VoteClock

S = 10**9
TICK, LATENESS, SILENCE = 5 * S, 10 * S, 25 * S
T0 = 1_767_225_600 * S


def clock(nodes: int) -> VoteClock:
    out = VoteClock(TICK, LATENESS, SILENCE)
    out.grow(nodes)
    return out


class Fed:
    """Feeds events as the judge does and keeps what became of each."""

    def __init__(self, nodes: int) -> None:
        self.clock = clock(nodes)
        self.late: list[int] = []
        self.refused: list[int] = []
        self.used: list[int] = []
        self.waiting: list[tuple[int, int, int]] = []
        self.number = 0

    def feed(self, events: list[tuple[int, int]]) -> None:
        queue = [(node, ts, self.number + i) for i, (node, ts) in enumerate(events)]
        self.number += len(events)
        while queue:
            taken = self.clock.take(np.array([e[0] for e in queue], np.uint32), np.array([e[1] for e in queue], np.int64))
            piece, queue = queue[: taken.n], queue[taken.n :]
            for i, event in enumerate(piece):
                if taken.late is not None and taken.late[i]:
                    self.late.append(event[2])
                elif taken.waits is not None and taken.waits[i]:
                    self.waiting.append(event)
                else:
                    self.used.append(event[2])
            if taken.refuted:
                self.refused += [e[2] for e in self.waiting]
                self.waiting = []
            if taken.released:
                queue, self.waiting = [*self.waiting, *queue], []

    @property
    def now_s(self) -> float:
        assert self.clock.now_ns is not None
        return (self.clock.now_ns - T0) / S


def steady(nodes: list[int], start_s: float, end_s: float, step_s: float = 0.5) -> list[tuple[int, int]]:
    times = np.arange(start_s, end_s, step_s)
    return [(nodes[i % len(nodes)], T0 + round(float(t) * S)) for i, t in enumerate(times)]


def test_it_follows_the_nodes() -> None:
    fed = Fed(4)
    fed.feed(steady([0, 1, 2, 3], 0, 300))
    assert 290 < fed.now_s < 300
    assert not fed.late
    assert not fed.refused


@pytest.mark.parametrize("ahead_s", [30, 500, 700, 86400 * 400])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_one_wild_timestamp_moves_nothing(ahead_s: int, nodes: int) -> None:
    fed = Fed(nodes)
    fed.feed(steady(list(range(nodes)), 0, 200))
    fed.feed([(0, T0 + (200 + ahead_s) * S)])
    fed.feed(steady(list(range(nodes)), 200, 260))
    assert not fed.late
    assert fed.now_s < 260
    assert len(fed.refused) == (ahead_s > 600)


@pytest.mark.parametrize("ahead_s", [60, 3600])
def test_one_node_with_a_wild_clock_moves_nothing(ahead_s: int) -> None:
    fed = Fed(4)
    good, wild = steady([0, 1, 2], 0, 400), steady([3], ahead_s, ahead_s + 400)
    events = sorted([(t, n, t) for n, t in good] + [(t - ahead_s * S, n, t) for n, t in wild])
    fed.feed([(n, t) for _, n, t in events])
    assert not fed.late
    assert 390 < fed.now_s < 400


def test_a_tenth_of_the_nodes_with_wild_clocks_move_nothing() -> None:
    fed = Fed(40)
    events = []
    for t, n in [(t, n) for t in range(200) for n in range(40)]:
        events.append((n, T0 + (t + (120 if n < 4 else 0)) * S + n))
    fed.feed(events)
    assert not fed.late
    assert fed.now_s < 201


def test_the_first_timestamp_may_be_wild() -> None:
    fed = Fed(3)
    fed.feed([(0, T0 + 86400 * S), *steady([0, 1, 2], 0, 120)])
    assert not fed.late
    assert 100 < fed.now_s < 120


def test_a_node_that_falls_silent_does_not_hold_the_others() -> None:
    fed = Fed(2)
    fed.feed(steady([0, 1], 0, 100))
    fed.feed(steady([0], 100, 400))
    assert fed.now_s > 350


def test_sparse_rows_of_one_node_go_on() -> None:
    fed = Fed(1)
    fed.feed([(0, T0 + i * 300 * S) for i in range(50)])
    assert fed.now_s >= 45 * 300
    assert not fed.refused
    assert not fed.late


def test_rows_an_hour_apart_go_on() -> None:
    fed = Fed(1)
    fed.feed([(0, T0 + i * 3600 * S) for i in range(50)])
    assert fed.now_s >= 46 * 3600
    assert not fed.refused
    assert not fed.late


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_night_without_traffic_is_a_gap_and_not_a_fault(nodes: int) -> None:
    fed = Fed(nodes)
    fed.feed(steady(list(range(nodes)), 0, 300))
    fed.feed(steady(list(range(nodes)), 30_000, 30_300))
    assert not fed.refused
    assert not fed.late
    assert fed.now_s > 30_250


def test_one_node_alone_after_a_night_is_believed_in_the_end() -> None:
    fed = Fed(2)
    fed.feed(steady([0, 1], 0, 300))
    fed.feed(steady([0], 30_000, 31_000))
    assert fed.now_s > 30_900


def test_events_behind_the_clock_are_late() -> None:
    fed = Fed(2)
    fed.feed(steady([0, 1], 0, 300))
    fed.feed([(0, T0 + 250 * S)])
    assert fed.late == [600]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), nodes=st.integers(1, 6), cuts=st.lists(st.integers(0, 900), max_size=12),
    wild=st.integers(0, 5), jitter=st.sampled_from([0.0, 3.0, 20.0]),
)  # fmt: skip
def test_chunking_does_not_matter(seed: int, nodes: int, cuts: list[int], wild: int, jitter: float) -> None:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 400, 900)) + rng.uniform(-jitter, 0, 900)
    t[rng.integers(0, 900, wild)] += rng.choice([60.0, 800.0, 1e5], wild)
    if rng.random() < 0.3:
        t[450:] += 5000.0
    node = rng.integers(0, nodes, 900)
    events = [(int(n), T0 + round(float(x) * 1e6) * 1000) for n, x in zip(node, t, strict=True)]
    whole, cut = Fed(nodes), Fed(nodes)
    whole.feed(events)
    edges = [0, *sorted(cuts), 900]
    for a, b in itertools.pairwise(edges):
        cut.feed(events[a:b])
    assert (whole.late, whole.refused, whole.used, whole.waiting) == (cut.late, cut.refused, cut.used, cut.waiting)
    assert whole.clock.dump() == cut.clock.dump()


@pytest.mark.parametrize("ahead_s", [-86_400, -3600, 20, 60, 590])
def test_one_stamp_in_a_hundred_that_is_wrong_moves_nothing(ahead_s: int) -> None:
    """Copies of another hour, at all nodes and from the first event on, or stamps some seconds ahead."""
    fed = Fed(8)
    wrong = set()
    events = []
    for i in range(40_000):
        if i % 100 == 3:
            wrong.add(len(events))
            events.append((i % 8, T0 + i * S // 100 + ahead_s * S))
        events.append((i % 8, T0 + i * S // 100))
    fed.feed(events)
    assert abs(fed.now_s - 400) < 8
    lost = (set(fed.late) | set(fed.refused)) - wrong
    assert len(lost) < 0.02 * len(events)


def test_state_round_trip() -> None:
    fed = Fed(3)
    fed.feed(steady([0, 1, 2], 0, 100))
    other = clock(0)
    other.load(fed.clock.dump())
    assert other.dump() == fed.clock.dump()
    assert other.now_ns == fed.clock.now_ns


def test_push_moves_time_and_refutes_what_waits() -> None:
    fed = Fed(2)
    fed.feed([*steady([0, 1], 0, 100), (0, T0 + 5000 * S)])
    taken = fed.clock.push(T0 + 200 * S)
    assert taken.refuted
    assert fed.now_s == 200
    assert fed.clock.first_open_slot() == (T0 + 190 * S) // TICK
    assert not fed.clock.push(T0 + 150 * S).refuted
    assert fed.now_s == 200


def test_how_far_it_looks_ahead_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    t = np.sort(rng.uniform(0, 400, 3000)) + rng.uniform(-8, 0, 3000)
    t[rng.integers(0, 3000, 4)] += 1e5
    events = [(int(n), T0 + round(float(x) * 1e6) * 1000) for n, x in zip(rng.integers(0, 5, 3000), t, strict=True)]
    whole, narrow = Fed(5), Fed(5)
    whole.feed(events)
    monkeypatch.setattr("streams.judge.clock._WINDOW", 7)
    narrow.feed(events)
    assert (whole.late, whole.refused, whole.used, whole.waiting) == (narrow.late, narrow.refused, narrow.used, narrow.waiting)
    assert whole.clock.dump() == narrow.clock.dump()


def test_full_frames_are_not_looked_at_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 nodes send 1,000 rows each, one node after the other: the clock is read dozens of times a tick, not thousands."""
    reads, read = 0, VoteClock._read

    def counted(clock: VoteClock) -> bool:
        nonlocal reads
        reads += 1
        return read(clock)

    monkeypatch.setattr(VoteClock, "_read", counted)
    judge, ticks = clock(64), 8
    for tick in range(ticks):
        span = T0 + tick * TICK + np.arange(1000) * (TICK // 1000)
        node, ts = np.repeat(np.arange(64, dtype=np.uint32), 1000), np.tile(span, 64)
        while len(ts):
            n = judge.take(node, ts).n
            node, ts = node[n:], ts[n:]
    assert judge.now_ns is not None
    assert judge.now_ns > T0 + (ticks - 2) * TICK
    assert reads < 60 * ticks
