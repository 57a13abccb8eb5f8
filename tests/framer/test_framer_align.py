"""Sources of a framer that was away go on in step, and nothing of a live stream waits."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.framer_align import BOUND_MS, PATIENCE_S, Aligner

NOW_MS = 2_000_000_000
NODES, REQUESTS = ("telemetry.nodes", 0), ("telemetry.requests", 0)


@dataclass(frozen=True)
class Message:
    ms: int

    def timestamp(self) -> tuple[int, int]:
        return 1, self.ms


class Backlog:
    """What the log holds of each source, read in pieces."""

    def __init__(self, per_source: dict[tuple[str, int], list[int]], aligner: Aligner[Message]) -> None:
        self.left = {source: [Message(ms) for ms in times] for source, times in per_source.items()}
        self.aligner = aligner
        aligner.assigned(self.left, 0.0)
        self.sent: list[tuple[tuple[str, int], int]] = []

    def round(self, sizes: dict[tuple[str, int], int], now_s: float = 1.0) -> bool:
        read = {}
        for source, left in self.left.items():
            if source not in self.aligner.holding and left:
                n = sizes.get(source, 100)
                read[source], self.left[source] = left[:n], left[n:]
        for source, messages in self.aligner.take(read, lambda s: bool(self.left[s]), now_s, NOW_MS).items():
            self.sent += [(source, message.ms) for message in messages]
        return any(self.left.values()) or bool(self.aligner.holding)

    def worst_ms(self) -> int:
        """How far behind the newest one sent before it any message was."""
        newest, worst = 0, 0
        for _, ms in self.sent:
            newest = max(newest, ms)
            worst = max(worst, newest - ms)
        return worst


def spread(n: int, over_s: float = 600.0) -> list[int]:
    return [NOW_MS - round(1000 * over_s * (1 - i / n)) for i in range(n)]


def test_ten_minutes_of_backlog_stay_in_step_though_one_topic_is_a_hundred_times_as_busy() -> None:
    backlog = Backlog({NODES: spread(600), REQUESTS: spread(60_000)}, Aligner())
    while backlog.round({NODES: 20_000, REQUESTS: 1000}):
        pass
    assert len(backlog.sent) == 60_600
    assert backlog.worst_ms() <= BOUND_MS + 11  # and the step between two messages
    alone = spread(600)
    assert alone[-1] - spread(60_000)[999] > 100 * BOUND_MS, "read as they come they would be minutes apart"


@given(st.integers(0, 1000), st.lists(st.integers(1, 400), min_size=2, max_size=5))
def test_everything_goes_on_once_in_its_own_order(seed: int, counts: list[int]) -> None:
    rng = random.Random(seed)
    times = {("t", i): [NOW_MS - rng.randint(0, 900_000) for _ in range(n)] for i, n in enumerate(counts)}
    backlog = Backlog(times, Aligner())
    while backlog.round({source: rng.randint(1, 300) for source in times}):
        pass
    for source, expected in times.items():
        assert [ms for sent, ms in backlog.sent if sent == source] == expected


def test_live_streams_do_not_wait() -> None:
    aligner: Aligner[Message] = Aligner()
    aligner.assigned([NODES, REQUESTS], 0.0)
    read = {NODES: [Message(NOW_MS - 900)], REQUESTS: [Message(NOW_MS - 50), Message(NOW_MS)]}
    assert aligner.take(read, lambda _: False, 1.0, NOW_MS) == read
    assert not aligner.holding


def test_source_that_should_give_something_is_waited_for_but_not_for_ever() -> None:
    aligner: Aligner[Message] = Aligner()
    aligner.assigned([NODES, REQUESTS], 0.0)
    assert aligner.take({NODES: [Message(NOW_MS)]}, lambda _: True, 1.0, NOW_MS) == {}
    assert aligner.holding == {NODES}
    assert aligner.take({}, lambda _: True, PATIENCE_S - 0.1, NOW_MS) == {}
    assert aligner.take({}, lambda _: True, PATIENCE_S, NOW_MS) == {NODES: [Message(NOW_MS)]}


@pytest.mark.parametrize("ms", [NOW_MS + 3_600_000, -1])
def test_wild_clocks_hold_up_nobody(ms: int) -> None:
    """A producer whose clock is an hour ahead, or a topic without timestamps."""
    aligner: Aligner[Message] = Aligner()
    aligner.assigned([NODES, REQUESTS], 0.0)
    read = {NODES: [Message(ms)], REQUESTS: [Message(NOW_MS)]}
    sent = [aligner.take(read, lambda _: False, 1.0, NOW_MS), aligner.take({}, lambda _: False, 1.0, NOW_MS)]
    assert sum(map(len, sent)) == 2
    assert not aligner.holding


def test_lost_partition_is_forgotten() -> None:
    aligner: Aligner[Message] = Aligner()
    aligner.assigned([NODES, REQUESTS], 0.0)
    aligner.take({NODES: [Message(NOW_MS)]}, lambda _: True, 1.0, NOW_MS)
    aligner.forget([NODES])
    assert not aligner.holding
    assert aligner.take({}, lambda _: False, 9.0, NOW_MS) == {}
