"""A framer that is given nothing although messages wait must end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from streams.framer_progress import Progress

SOURCE = ("telemetry.requests", 0)


class Broker:
    """Log end and commits of one partition."""

    def __init__(self, end: int = 0, committed: int = -1001) -> None:
        self.end, self.offset, self.asked, self.away = end, committed, 0, False

    def get_watermark_offsets(self, partition: Any, **_: Any) -> tuple[int, int]:
        self.asked += 1
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return 0, self.end

    def committed(self, partitions: Any, **_: Any) -> list[Any]:
        return [SimpleNamespace(offset=self.offset)]


class Rig:
    def __init__(self, broker: Broker, position: int | None) -> None:
        self.now_s, self.broker, self.position = 0.0, broker, position
        self.progress = Progress(10.0, lambda: self.now_s)

    def after(self, seconds: float, *, heard: bool = False) -> str:
        self.now_s += seconds
        return self.progress.look(self.broker, [SOURCE], lambda source: self.position, heard=heard)  # type: ignore[arg-type]


def test_messages_that_nobody_is_given_end_the_process_after_two_looks() -> None:
    rig = Rig(Broker(end=100), position=40)
    assert rig.after(9.9) == ""
    assert rig.broker.asked == 0
    assert rig.after(0.2) == ""
    assert "stands at offset 40" in rig.after(10.1)


def test_partition_of_which_nothing_was_read_counts_from_its_commit() -> None:
    assert Rig(Broker(end=100, committed=100), None).after(10.1) == ""
    rig = Rig(Broker(end=100), None)
    rig.after(10.1)
    assert "stands at offset 0" in rig.after(10.1)


def test_silence_progress_and_an_absent_broker_are_no_reason() -> None:
    quiet = Rig(Broker(end=40), position=40)
    assert [quiet.after(10.1) for _ in range(3)] == ["", "", ""]
    heard = Rig(Broker(end=100), position=40)
    assert heard.after(10.1) == ""
    assert heard.after(0.1, heard=True) == ""
    assert heard.after(10.1) == "", "counted anew"
    moved = Rig(Broker(end=100), position=40)
    moved.after(10.1)
    moved.position = 60
    assert moved.after(10.1) == ""
    away = Rig(Broker(end=100), position=40)
    away.after(10.1)
    away.broker.away = True
    assert away.after(10.1) == ""
