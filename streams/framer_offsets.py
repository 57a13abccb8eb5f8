"""Which source offsets may be committed: those whose every output is acknowledged, in the order they were read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from confluent_kafka import KafkaError, Message

__all__ = ["Epoch", "OffsetLog", "Source"]

Source = tuple[str, int]
"""Topic and partition."""


class Epoch:
    """Outputs sent between two commits, and how far the sources were read meanwhile."""

    __slots__ = ("acknowledged", "failed", "positions", "sent")

    def __init__(self) -> None:
        self.positions: dict[Source, int] = {}
        self.sent = 0
        self.acknowledged = 0
        self.failed = ""

    def report(self, error: KafkaError | None, message: Message) -> None:
        """`on_delivery` of every output of this epoch."""
        if error is None:
            self.acknowledged += 1
        else:
            self.failed = f"{message.topic()}: {error.str()}"


class OffsetLog:
    """Epochs in order; an offset is safe when its epoch and all before it are acknowledged.

    Attributes:
        current: The epoch that outputs and positions belong to now.
    """

    def __init__(self) -> None:
        self.current = Epoch()
        self._closed: deque[Epoch] = deque()
        self._safe: dict[Source, int] = {}
        self._committed: dict[Source, int] = {}

    def close_epoch(self) -> None:
        """Begin a new epoch; the offsets read so far become safe when what was sent is acknowledged."""
        if self.current.sent or self.current.positions:
            self._closed.append(self.current)
            self.current = Epoch()

    def position(self, source: Source) -> int | None:
        """Next offset to read of `source`, or None if nothing of it was read."""
        for epoch in (self.current, *reversed(self._closed)):
            if source in epoch.positions:
                return epoch.positions[source]
        return self._safe.get(source)

    def failure(self) -> str:
        """Why an output can never be stored; "" if that did not happen."""
        return next((epoch.failed for epoch in (*self._closed, self.current) if epoch.failed), "")

    def to_commit(self, owned: Iterable[Source]) -> dict[Source, int]:
        """Next offset to read of each of the `owned` sources that has safe and uncommitted messages."""
        while self._closed and self._closed[0].acknowledged == self._closed[0].sent and not self._closed[0].failed:
            self._safe.update(self._closed.popleft().positions)
        return {s: self._safe[s] for s in owned if s in self._safe and self._safe[s] != self._committed.get(s)}

    def committed(self, source: Source, offset: int) -> None:
        """The broker has stored this offset."""
        if source in self._safe:
            self._committed[source] = offset

    def forget(self, sources: Iterable[Source]) -> None:
        """These sources are not ours any more: nothing of them is committed later."""
        for source in sources:
            for positions in (self._safe, self._committed, self.current.positions, *(epoch.positions for epoch in self._closed)):
                positions.pop(source, None)
