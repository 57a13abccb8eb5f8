"""The watchdog ends what stands still, and nothing else."""

from __future__ import annotations

import pytest

from streams.worker.watchdog import Observation, Watchdog

SESSION_S = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dog(clock: Clock) -> Watchdog:
    return Watchdog(SESSION_S, commit_every_s=30.0, clock_s=clock)


def seen(assigned: bool = True, end: int | None = 10, done: int = 0, committed: int = 0, waiting: bool = False) -> Observation:
    return Observation(
        assigned={"t[0]"} if assigned else set(),
        ends=None if end is None else {"t[0]": end},
        done={"t[0]": done},
        committed={"t[0]": committed},
        waiting={"t[0]"} if waiting else set(),
    )


def run(dog: Watchdog, clock: Clock, seconds: float, **what: object) -> str | None:
    """Looks once a second; the first reason to end, if any."""
    for _ in range(round(seconds)):
        if reason := dog.look(seen(**what)):  # type: ignore[arg-type]
            return reason
        clock.now += 1.0
    return None


def test_position_that_stands_while_messages_wait_ends_the_process_after_two_sessions(dog: Watchdog, clock: Clock) -> None:
    reason = run(dog, clock, 60, end=10, done=3)
    assert reason is not None
    assert "t[0] stands at offset 3 while its end is 10" in reason
    assert clock.now == pytest.approx(2 * SESSION_S)


def test_worker_that_has_read_everything_may_rest(dog: Watchdog, clock: Clock) -> None:
    assert run(dog, clock, 300, end=10, done=10) is None
    assert run(dog, clock, 19, end=11, done=10) is None, "messages wait only since now"


def test_worker_that_gets_on_is_left_alone(dog: Watchdog, clock: Clock) -> None:
    for offset in range(40):
        assert run(dog, clock, 15, end=1000, done=offset) is None


def test_no_assignment_is_fatal_only_while_nobody_commits(dog: Watchdog, clock: Clock) -> None:
    assert run(dog, clock, 300, assigned=False, end=10, committed=10) is None
    for offset in range(20):
        assert run(dog, clock, 60, assigned=False, end=1000, committed=offset) is None
    reason = run(dog, clock, 300, assigned=False, end=1000, committed=20)
    assert reason is not None
    assert "no partition is assigned" in reason


def test_absent_broker_and_absent_destination_are_no_reasons(dog: Watchdog, clock: Clock) -> None:
    assert run(dog, clock, 15, end=10, done=3) is None
    assert run(dog, clock, 300, end=None, done=3) is None
    assert run(dog, clock, 15, end=10, done=3) is None, "counting starts again when the broker is back"
    assert run(dog, clock, 300, end=10, done=3, waiting=True) is None


def test_assignment_that_comes_in_time_resets(dog: Watchdog, clock: Clock) -> None:
    assert run(dog, clock, 70, assigned=False) is None
    assert run(dog, clock, 10, done=10) is None
    assert run(dog, clock, 70, assigned=False) is None


def test_partition_that_waits_for_its_turn_among_others_has_more_time_but_not_for_ever(dog: Watchdog, clock: Clock) -> None:
    def look(other_done: int) -> str | None:
        clock.now += 1.0
        return dog.look(
            Observation(
                assigned={"t[0]", "t[1]"}, ends={"t[0]": 10, "t[1]": 10_000}, done={"t[0]": 3, "t[1]": other_done}, committed={}
            )
        )

    assert all(look(other_done=i) is None for i in range(150)), "the other one catches up"
    reasons = [look(other_done=150 + i) for i in range(100)]
    assert any(r is not None and "t[0] stands at offset 3" in r for r in reasons)


def test_partition_that_stands_while_the_others_are_done_is_stuck(dog: Watchdog, clock: Clock) -> None:
    reason = None
    for i in range(25):
        clock.now += 1.0
        ends = {"t[0]": 10, "t[1]": 100 + i}
        seen = Observation(assigned={"t[0]", "t[1]"}, ends=ends, done={"t[0]": 3, "t[1]": 100 + i}, committed={})
        reason = reason or dog.look(seen)
    assert reason is not None
    assert reason.startswith("t[0] stands")
