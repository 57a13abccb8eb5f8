"""A wall clock that is set back ends the process; one that is set forward, slewed or read across a pause does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from streams.clock_step import StepBack, end_when_set_back


class Clocks:
    """Both clocks, in seconds."""

    def __init__(self) -> None:
        self.wall_s, self.since_start_s = 1_796_000_000.0, 50.0

    def pass_s(self, seconds: float, set_by_s: float = 0.0) -> None:
        self.wall_s += seconds + set_by_s
        self.since_start_s += seconds

    def step(self) -> StepBack:
        return StepBack(lambda: self.wall_s, lambda: self.since_start_s)


def test_two_hours_back_are_noticed_once() -> None:
    clocks = Clocks()
    step = clocks.step()
    clocks.pass_s(0.5)
    assert step.look() is None
    clocks.pass_s(0.5, set_by_s=-7200)
    assert step.look() == pytest.approx(7200)
    clocks.pass_s(0.5)
    assert step.look() is None


def test_set_forward_and_back_again() -> None:
    clocks = Clocks()
    step = clocks.step()
    clocks.pass_s(0.5, set_by_s=7200)
    assert step.look() is None
    clocks.pass_s(0.5, set_by_s=-7200)
    assert step.look() == pytest.approx(7200)


def test_slewing_and_long_silence_are_no_step() -> None:
    clocks = Clocks()
    step = clocks.step()
    for _ in range(10_000):  # 500 ppm, far more than 2 s together
        clocks.pass_s(0.5, set_by_s=-0.00025)
        assert step.look() is None
    clocks.pass_s(86_400)
    assert step.look() is None


def test_a_pause_between_the_readings_is_no_step() -> None:
    clocks = Clocks()
    pauses: Iterator[float] = iter([0.0, 60.0, 0.0, 0.0])

    def wall_s() -> float:
        read = clocks.wall_s
        clocks.pass_s(next(pauses))
        return read

    step = StepBack(wall_s, lambda: clocks.since_start_s)
    assert step.look() is None
    assert step.look() is None
    assert next(pauses, None) is None  # the reading with the pause was repeated


def test_the_process_ends_with_an_error() -> None:
    clocks = Clocks()
    codes: list[int] = []
    step = clocks.step()
    clocks.pass_s(0.5, set_by_s=-7200)
    thread = end_when_set_back(step, codes.append, threading.Event())
    thread.join(20)
    assert not thread.is_alive()
    assert codes == [1]


def test_a_watch_that_is_stopped_ends_nothing() -> None:
    stop, codes = threading.Event(), list[int]()
    clocks = Clocks()
    step = clocks.step()
    stop.set()
    clocks.pass_s(0.5, set_by_s=-7200)
    thread = end_when_set_back(step, codes.append, stop)
    thread.join(20)
    assert not thread.is_alive()
    assert codes == []
