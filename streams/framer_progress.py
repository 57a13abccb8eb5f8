"""Notices a framer that owns partitions with messages and is given none: librdkafka's consumer has been seen to stay so after
errors of its group. Nothing but a new process helps, so the framer ends and its supervisor starts it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streams.framer_offsets import Source

__all__ = ["Progress"]

_ASK_S = 1.0


class Progress:
    """Costs nothing while messages come; asks the broker only after a silence.

    Args:
        patience_s: Silence after which the ends of the logs are asked for; what waits twice in a row is stuck.
        clock_s: Monotonic seconds.
    """

    def __init__(self, patience_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock_s = clock_s
        self._quiet_since_s = clock_s()
        self._waiting: dict[Source, int] = {}

    def look(
        self, consumer: Consumer, owned: Iterable[Source], next_offset: Callable[[Source], int | None], *, heard: bool
    ) -> str:
        """Why the process should end, or "".

        Args:
            consumer: Asked for ends and commits.
            owned: Sources that are ours.
            next_offset: First offset of a source that was not read; None when nothing of it was read yet.
            heard: Whether anything came since the last call.
        """
        now_s = self._clock_s()
        if heard:
            self._quiet_since_s = now_s
            self._waiting.clear()
        if now_s - self._quiet_since_s < self._patience_s:
            return ""
        self._quiet_since_s = now_s
        before, self._waiting = self._waiting, {}
        try:
            for source in sorted(owned):
                where = next_offset(source)
                if where is None:
                    (committed,) = consumer.committed([TopicPartition(*source)], timeout=_ASK_S)
                    where = max(0, committed.offset)
                low, end = consumer.get_watermark_offsets(TopicPartition(*source), timeout=_ASK_S, cached=False)
                if end > max(low, where):
                    self._waiting[source] = where
        except KafkaException:
            self._waiting = {}  # away, or slow: nothing to judge by
            return ""
        for (topic, partition), where in self._waiting.items():
            if before.get((topic, partition)) == where:
                return f"{topic}[{partition}] stands at offset {where} with messages behind it, for {2 * self._patience_s:.0f} s"
        return ""
