"""What the pipeline says, read from its topics as it says it: windows, findings, decisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from schemas.errors import SlodriftError
from schemas.results import Decision, Finding
from schemas.topics import DECISIONS, FINDINGS, WINDOWS
from schemas.windows import decode_windows
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.decision_log import LogReader

__all__ = ["NotInTime", "PipelineResults", "Series"]

T = TypeVar("T")
_POLL_S = 0.05


class NotInTime(SlodriftError):
    """Something that should have happened did not."""


@dataclass(slots=True)
class Series:
    """One row of a windows message: the columns of the ClickHouse table, for one node and SLI."""

    t: float
    row: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.row[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(slots=True)
class _Seen:
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


class PipelineResults:
    """A context manager with a thread that reads the three topics from their beginning, without a consumer group.

    Args:
        settings: Where Kafka is.
        pool: Only what concerns this pool is kept.

    Attributes:
        series: Newest window of each (node, SLI).
        findings, decisions: All so far, in order.
    """

    def __init__(self, settings: Settings, pool: str) -> None:
        self._consumer = Consumer(
            {
                **client_config(settings), "group.id": "slodrift-demo-reader", "enable.auto.commit": False,
                "fetch.wait.max.ms": max(1, round(settings.kafka_fetch_wait_s * 1000)),
            }
        )  # fmt: skip
        self._pool = pool
        self._seen = _Seen()
        self._logs: dict[int, LogReader] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    @property
    def series(self) -> dict[tuple[str, str], Series]:
        return self._seen.series

    @property
    def findings(self) -> list[Finding]:
        return self._seen.findings

    @property
    def decisions(self) -> list[Decision]:
        return self._seen.decisions

    def wait(self, look: Callable[[], T | None], what: str, deadline_s: float, check: Callable[[], None]) -> T:
        """What `look` gives, as soon as that is true; it is asked whenever something was read, and a few times a second.

        Args:
            look: Asked under the lock of the reader.
            what: For the message.
            deadline_s: From now.
            check: Called in between; raises when going on makes no sense.

        Raises:
            NotInTime: Nothing true within `deadline_s`.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            with self._changed:
                if found := look():
                    return found
                if time.monotonic() >= end_s:
                    raise NotInTime(f"{what} did not happen within {deadline_s:g} s")
                self._changed.wait(_POLL_S)
            if self._error is not None:
                raise self._error
            check()

    def _run(self) -> None:
        try:
            metadata = self._consumer.list_topics(timeout=10)
            topics = (WINDOWS.name, FINDINGS.name, DECISIONS.name)
            self._consumer.assign(
                [TopicPartition(name, p, OFFSET_BEGINNING) for name in topics for p in metadata.topics[name].partitions]
            )
            while not self._stop.is_set():
                for message in self._consumer.consume(1000, timeout=_POLL_S):
                    if message.error() is None:
                        self._take(message)
        except Exception as exc:  # the supervised place: `wait` raises it in the main thread
            self._error = exc
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        raw = message.value()
        with self._changed:
            if message.topic() == WINDOWS.name:
                self._take_windows(raw)
            elif message.topic() == FINDINGS.name:
                finding = msgspec.json.decode(raw, type=Finding)
                if finding.pool == self._pool:
                    self.findings.append(finding)
            else:
                reader = self._logs.setdefault(message.partition(), LogReader())
                decision = reader.read(message.offset(), raw)
                if decision is not None and decision.pool == self._pool:
                    self.decisions.append(decision)
            self._changed.notify_all()

    def _take_windows(self, raw: bytes) -> None:
        block = decode_windows(raw)
        if block.pool != self._pool:
            return
        for i in range(block.n):
            row = {name: values[i] for name, values in block.columns.items()}
            self.series[row["node"], row["sli"]] = Series(block.t_ms / 1000, row)

    def __enter__(self) -> PipelineResults:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
