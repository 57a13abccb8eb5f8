"""Which offsets may be committed: a partition's offset up to which everything is durable, and nothing beyond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from faust.types import TP

__all__ = ["CommitLedger"]


class CommitLedger:
    """Durable offsets by partition. A note travels with a commit as its metadata (what the archive is about to insert)."""

    def __init__(self) -> None:
        self._durable: dict[TP, tuple[int, str]] = {}
        self._committed: dict[TP, tuple[int, str]] = {}

    def durable(self, tp: TP, next_offset: int, note: str = "") -> None:
        """Everything below `next_offset` is durable; it never goes back while the partition is ours."""
        before = self._durable.get(tp, (0, ""))[0]
        if next_offset < before:
            raise ValueError(f"{tp}: durable offset would go back from {before} to {next_offset}")
        self._durable[tp] = (next_offset, note)

    def partitions(self) -> list[TP]:
        """Partitions with a durable offset."""
        return list(self._durable)

    def committable(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Offsets to commit: durable, and not yet committed with their note."""
        return {tp: self._durable[tp][0] for tp in tps if tp in self._durable and self._committed.get(tp) != self._durable[tp]}

    def notes_of(self, tps: Iterable[TP]) -> dict[TP, str]:
        """Notes of these partitions."""
        return {tp: self._durable[tp][1] for tp in tps if tp in self._durable}

    def committed(self, offsets: Mapping[TP, int], notes: Mapping[TP, str]) -> None:
        """The group's coordinator has stored these."""
        self._committed.update({tp: (offset, notes.get(tp, "")) for tp, offset in offsets.items() if tp in self._durable})

    def is_committed(self, tp: TP) -> bool:
        """Whether the newest durable offset of `tp` is committed, with its note."""
        return tp in self._durable and self._committed.get(tp) == self._durable[tp]

    def forget(self, tps: Iterable[TP]) -> None:
        """The partitions are not ours any more."""
        for tp in tps:
            self._durable.pop(tp, None)
            self._committed.pop(tp, None)
