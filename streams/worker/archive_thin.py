"""Which windows of a tick are worth a row in ClickHouse: every one that has something to tell, the quiet ones once a minute.

A judge says all series of a pool every tick, and neighbouring windows overlap: a series that is fine says the same twelve times
a minute. Kept are: series in alarm, above their tail threshold, improved, or under another mix; series that are DEGRADED or
STALLED; series whose status changed; and, in the first tick of each minute, everything. Time is event time, so that a late
archive keeps the same rows. A new owner of a partition keeps its first tick whole: a few rows more, never one less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.windows import WindowBlock

__all__ = ["Thinner"]

_LOUD = frozenset({"DEGRADED", "STALLED"})
_FLAGS = ("alarm", "improved", "mix_alarm", "tail_above")


@dataclass(slots=True)
class _Pool:
    minute: int
    series: tuple[list[str], list[str]]
    status: list[str]


class Thinner:
    """Memory of the pools of one partition.

    Args:
        quiet_s: A series with nothing to tell is kept this often, seconds; 0 keeps everything.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_ms = round(1000 * quiet_s)
        self._pools: dict[str, _Pool] = {}

    def keep(self, block: WindowBlock) -> NDArray[np.intp]:
        """Indices of the rows to keep, ascending; call it with the blocks of a pool in the order of the log."""
        columns = block.columns
        if self._quiet_ms <= 0 or not {"node", "sli", "status"} <= columns.keys():
            return np.arange(block.n)
        minute, series, status = block.t_ms // self._quiet_ms, (columns["node"], columns["sli"]), columns["status"]
        before = self._pools.get(block.pool)
        self._pools[block.pool] = _Pool(minute if before is None else max(minute, before.minute), series, status)
        if before is None or minute > before.minute:
            return np.arange(block.n)
        loud = np.fromiter((word in _LOUD for word in status), np.bool_, block.n)
        for name in _FLAGS:
            if name in columns:
                loud |= columns[name].astype(np.bool_)
        if before.series == series:
            if before.status != status:
                loud |= np.fromiter((a != b for a, b in zip(before.status, status, strict=True)), np.bool_, block.n)
        else:
            known = dict(zip(zip(*before.series, strict=True), before.status, strict=True))
            loud |= np.fromiter(
                (known.get(key) != word for key, word in zip(zip(*series, strict=True), status, strict=True)), np.bool_, block.n
            )
        return np.flatnonzero(loud)
