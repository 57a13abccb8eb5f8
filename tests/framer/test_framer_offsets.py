from typing import Any

from streams.framer_offsets import OffsetLog

A, B = ("t", 0), ("t", 1)


class Reported:
    def topic(self) -> str:
        return "frames"


class Error:
    def str(self) -> str:
        return "too large"


ok: Any = (None, Reported())


def test_nothing_is_safe_before_everything_before_it_is_acknowledged() -> None:
    log = OffsetLog()
    first = log.current
    first.sent, first.positions[A] = 2, 10
    log.close_epoch()
    second = log.current
    second.sent, second.positions[A] = 1, 20
    log.close_epoch()
    second.report(*ok)
    first.report(*ok)
    assert log.to_commit([A]) == {}
    first.report(*ok)
    assert log.to_commit([A]) == {A: 20}
    assert log.position(A) == 20


def test_what_is_committed_or_not_owned_is_not_committed_again() -> None:
    log = OffsetLog()
    log.current.positions.update({A: 5, B: 7})
    log.close_epoch()
    assert log.to_commit([A]) == {A: 5}
    log.committed(A, 5)
    assert log.to_commit([A, B]) == {B: 7}


def test_a_commit_that_failed_comes_again() -> None:
    log = OffsetLog()
    log.current.positions[A] = 5
    log.close_epoch()
    assert log.to_commit([A]) == log.to_commit([A]) == {A: 5}


def test_a_forgotten_source_is_not_committed_by_a_late_acknowledgement() -> None:
    log = OffsetLog()
    epoch = log.current
    epoch.sent, epoch.positions[A], epoch.positions[B] = 1, 5, 6
    log.close_epoch()
    log.forget([A])
    epoch.report(*ok)
    assert log.to_commit([A, B]) == {B: 6}
    assert log.position(A) is None


def test_an_output_that_can_never_be_stored_stops_everything_behind_it() -> None:
    log = OffsetLog()
    log.current.sent, log.current.positions[A] = 1, 5
    failed: Any = (Error(), Reported())
    log.current.report(*failed)
    log.close_epoch()
    assert log.failure() == "frames: too large"
    log.current.positions[A] = 9
    log.close_epoch()
    assert log.to_commit([A]) == {}
