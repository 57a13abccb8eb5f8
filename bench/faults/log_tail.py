"""Everything that is in the topics, read along without a group; and how far the groups have come."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from schemas.errors import SchemaError
from schemas.results import Decision
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, FRAMES, TELEMETRY, WINDOWS
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.decision_log import LogReader

__all__ = ["ARCHIVED", "SOURCES", "LogTail", "Progress"]

SOURCES = tuple(topic.name for topic in TELEMETRY)
ARCHIVED = (WINDOWS.name, FINDINGS.name, DECISIONS.name, DEADLETTER.name)
_KEPT = (FRAMES.name, WINDOWS.name, DECISIONS.name, DEADLETTER.name)


class LogTail:
    """Follows frames, windows, decisions and dead letters from a thread.

    Args:
        settings: Where Kafka is.
        n_partitions: Of every topic.
    """

    def __init__(self, settings: Settings, n_partitions: int) -> None:
        self._n = n_partitions
        self._config = {
            **client_config(settings), "group.id": "faults-tail", "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }  # fmt: skip
        self._stop = threading.Event()
        self._grown = threading.Condition()
        self.records: dict[tuple[str, int], list[Message]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run, name="log-tail", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(10)

    def of(self, topic: str) -> list[Message]:
        """Records of a topic, partition by partition."""
        with self._grown:
            return [record for p in range(self._n) for record in self.records[topic, p]]

    def mark(self) -> dict[tuple[str, int], int]:
        """Records of each partition so far."""
        with self._grown:
            return {(topic, p): len(self.records[topic, p]) for topic in _KEPT for p in range(self._n)}

    def since(self, mark: dict[tuple[str, int], int], topic: str) -> list[Message]:
        """Records of a topic behind a mark."""
        with self._grown:
            return [record for p in range(self._n) for record in self.records[topic, p][mark[topic, p] :]]

    def decisions(self, pools: Iterable[str]) -> tuple[list[Decision], int]:
        """Decisions about pools that count, in log order, each once; and how many were void."""
        wanted, found, void = set(pools), dict[str, Decision](), 0
        for p in range(self._n):
            reader = LogReader()
            with self._grown:
                records = list(self.records[DECISIONS.name, p])
            for record in records:
                try:
                    before = reader.void
                    decision = reader.read(record.offset(), record.value())
                    void += reader.void - before
                except SchemaError:
                    continue
                if decision is not None and decision.pool in wanted:
                    found[decision.tx] = decision
        return list(found.values()), void

    def wait(self, topic: str, ends: list[int], deadline_s: float) -> bool:
        """Until everything below `ends` was read."""
        with self._grown:
            return self._grown.wait_for(
                lambda: all(
                    not end or (self.records[topic, p] and self.records[topic, p][-1].offset() >= end - 1)
                    for p, end in enumerate(ends)
                ),
                deadline_s,
            )

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.assign([TopicPartition(topic, p, 0) for topic in _KEPT for p in range(self._n)])
        while not self._stop.is_set():
            for message in consumer.consume(2000, timeout=0.05):
                if message.error() is None:
                    with self._grown:
                        self.records[message.topic(), message.partition()].append(message)
                        self._grown.notify_all()
        consumer.close()


class Progress:
    """Committed offsets of the groups and ends of the topics.

    Args:
        settings: Where Kafka is, and the names of the groups.
        n_partitions: Of every topic.
    """

    def __init__(self, settings: Settings, n_partitions: int) -> None:
        self._n = n_partitions
        self._work = {
            settings.framer_group: SOURCES,
            settings.judge_group: (FRAMES.name,),
            settings.archive_group: ARCHIVED,
        }
        self._consumers: dict[str, Any] = {
            group: Consumer({**client_config(settings), "group.id": group, "enable.auto.commit": False}) for group in self._work
        }

    def ends(self, topic: str) -> list[int]:
        """Log ends of the partitions of a topic."""
        consumer = next(iter(self._consumers.values()))
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=5)[1] for p in range(self._n)]

    def lag(self) -> dict[str, int]:
        """Records that a group has not committed, by group; everything is a lag while Kafka is away."""
        behind = {}
        for group, topics in self._work.items():
            asked = [TopicPartition(topic, p) for topic in topics for p in range(self._n)]
            try:
                committed = {(c.topic, c.partition): max(0, c.offset) for c in self._consumers[group].committed(asked, timeout=5)}
                ends = {topic: self.ends(topic) for topic in topics}
            except KafkaException:
                return dict.fromkeys(self._work, -1)
            behind[group] = sum(ends[topic][p] - committed[topic, p] for topic in topics for p in range(self._n))
        return behind

    def close(self) -> None:
        """Close the clients."""
        for consumer in self._consumers.values():
            consumer.close()
