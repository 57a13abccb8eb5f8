"""Further detectors from the library river, one for each node (and latency), on summaries of ticks.

They are shown and decide nothing. A detector's state is not saved, it is made again: every value a detector has seen since it
was new is kept, and after `RENEW` of them it is replaced by a new one that has seen the last `CARRY` (the number is staggered
over the nodes). So memory is bounded, and a restored detector is the same as the one that went on. Detectors that test a
window of fixed size are slow to make again, but know nothing beyond it: they carry their window and are renewed every few ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.bank import SeriesBank
from detectors.rows import Rows
from detectors.state import SLIS
from detectors.weights import Weight, count, picked
from schemas.batch import UNKNOWN_TOKENS

__all__ = ["CARRY", "RENEW", "Channels", "median_s", "summaries", "waiting"]

CARRY, RENEW = 256, 1024
_STAGGER = 61
_RENEW_WINDOW = 16
_PER_LATENCY = ("mean_log_latency", "p99_log")
_FLOOR_S = 1e-6

Floats = NDArray[np.float64]


class Channels:
    """All further detectors of a pool.

    Args:
        watches: For each channel the summary that it watches and what makes a new detector of it.
        hold: Ticks for which a drift is shown after it was seen.

    >>> class Jump:
    ...     def update(self, value):
    ...         self.drift_detected = value > 1
    >>> channels = Channels([("n", Jump)], hold=2)
    >>> channels.grow(1)
    >>> [bool(channels.update({"n": np.array([[v]])})[0, 0, 0]) for v in (0, 5, 0, 0)]
    [False, True, True, False]
    """

    def __init__(self, watches: Sequence[tuple[str, Callable[[], Any]]], hold: int) -> None:
        self.watches, self.hold = list(watches), hold
        self._memory = [_memory(make()) for _, make in self.watches]
        self.n = 0
        self._detectors: dict[tuple[int, int, int], Any] = {}
        self._seen: dict[tuple[int, int, int], list[float]] = {}
        self._left = np.zeros((0, len(self.watches), SLIS), np.int32)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        self._left = np.concatenate([self._left, np.zeros((n - self.n, len(self.watches), SLIS), np.int32)])
        self.n = n

    def update(self, values: dict[str, Floats]) -> NDArray[np.bool_]:
        """One tick.

        Args:
            values: Of each summary, (nodes, SLIs) or (nodes, 1); NaN where there is none.

        Returns:
            Whether a detector saw a drift in the last `hold` ticks, (nodes, channels, SLIs); summaries that are not of a
            latency use the first SLI.
        """
        np.maximum(self._left - 1, 0, out=self._left)
        for channel, (on, make) in enumerate(self.watches):
            value = values[on]
            for node, sli in zip(*np.nonzero(np.isfinite(value)), strict=True):
                if self._step((int(node), channel, int(sli)), float(value[node, sli]), make):
                    self._left[node, channel, sli] = self.hold
        return self._left > 0

    def _step(self, key: tuple[int, int, int], value: float, make: Callable[[], Any]) -> bool:
        seen = self._seen.setdefault(key, [])
        carry, renew = self._memory[key[1]]
        if len(seen) >= renew + key[0] * _STAGGER % min(carry, renew - carry):
            self._seen[key] = seen = seen[-carry:]
            self._detectors.pop(key, None)
        detector = self._detectors.get(key)
        if detector is None:
            detector = self._detectors[key] = make()
            for old in seen:
                detector.update(old)
        seen.append(value)
        detector.update(value)
        return bool(detector.drift_detected)

    def forget(self, nodes: NDArray[np.bool_]) -> None:
        """New detectors for nodes (bool (nodes,)): what is normal is another thing now."""
        gone = set(np.flatnonzero(nodes).tolist())
        for table in (self._detectors, self._seen):
            for key in [key for key in table if key[0] in gone]:
                del table[key]
        self._left[nodes] = 0

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        seen = [[list(key), np.array(values).tobytes()] for key, values in sorted(self._seen.items())]
        return {"n": self.n, "seen": seen, "left": self._left.tobytes()}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote, of the same channels. A detector is made when its next value comes."""
        self.n = raw["n"]
        self._seen = {(node, channel, sli): np.frombuffer(b).tolist() for (node, channel, sli), b in raw["seen"]}
        self._left = np.frombuffer(raw["left"], np.int32).reshape(self.n, len(self.watches), SLIS).copy()
        self._detectors = {}


def _memory(detector: Any) -> tuple[int, int]:
    """Values that a new detector is shown, and values after which it is renewed."""
    window = getattr(detector, "window_size", None)
    return (CARRY, RENEW) if window is None else (int(window), int(window) + _RENEW_WINDOW)


def waiting(bank: SeriesBank, slot: int) -> Rows:
    """Requests of a tick that the bank has not closed yet: the bank keeps and saves them, so nobody else has to."""
    return Rows.join(bank._open.get(slot, []))


def summaries(
    wanted: set[str], rows: Rows, asked: NDArray[np.int64], counted: NDArray[np.int64], errors: NDArray[np.int64], tick_s: float
) -> dict[str, Floats]:
    """Summaries of a tick, (nodes, SLIs) or (nodes, 1); NaN where there is none.

    Args:
        wanted: Their names (`schemas.policy_extra.ExtraOn`).
        rows: Requests that were answered well, in any order.
        asked: Requests of each node.
        counted: Those that say something about it.
        errors: Those that count against it.
        tick_s: Length of the tick, seconds.
    """
    n = len(asked)
    out: dict[str, Floats] = {}
    if wanted & {*_PER_LATENCY}:
        logs = {name: np.full((n, SLIS), np.nan) for name in _PER_LATENCY}
        for sli in range(SLIS):
            mean, p99 = _logs(rows.node, rows.latency_s[sli], n, rows.weight)
            logs["mean_log_latency"][:, sli], logs["p99_log"][:, sli] = mean, p99
        out |= logs
    if "error_ratio" in wanted:
        with np.errstate(invalid="ignore", divide="ignore"):
            out["error_ratio"] = (errors / counted)[:, None]
    if "throughput" in wanted:
        tokens = np.where(rows.output == UNKNOWN_TOKENS, np.uint32(0), rows.output)
        if rows.weight is not None:
            tokens = tokens * rows.weight.astype(np.float64)
        out["throughput"] = (np.bincount(rows.node, weights=tokens, minlength=n) / tick_s)[:, None]
    if "n" in wanted:
        out["n"] = asked[:, None].astype(np.float64)
    return out


def median_s(
    node: NDArray[np.uint32], seconds: NDArray[np.float32], n: int, weight: Weight = None
) -> tuple[Floats, NDArray[np.int64]]:
    """Lower median of a latency of each node, seconds (n,), NaN without any; and how many there are, (n,).

    Args:
        node: Index of the node of each request, (rows,).
        seconds: Latency, NaN where unknown, (rows,).
        n: Nodes.
        weight: Of each request, (rows,).

    >>> import numpy as np
    >>> median_s(np.array([1, 1, 0, 1], np.uint32), np.array([3, 1, 7, 2], np.float32), 2)[0].tolist()
    [7.0, 2.0]
    """
    _, values, each, known = _by_node(node, seconds, n, weight)
    out = np.full(n, np.nan)
    out[known > 0] = values[_at(known, 0.5, each)]
    return out, known


def _logs(node: NDArray[np.uint32], seconds: NDArray[np.float32], n: int, weight: Weight) -> tuple[Floats, Floats]:
    """Mean and 99th percentile of the log of a latency of each node, (n,); the same in whatever order rows came."""
    who, values, each, known = _by_node(node, seconds, n, weight)
    logs = np.log(np.maximum(values, _FLOOR_S))
    mean, p99 = np.full(n, np.nan), np.full(n, np.nan)
    some = known > 0
    sums = logs if each is None else logs * each
    mean[some] = np.bincount(who, weights=sums, minlength=n)[some] / known[some]
    p99[some] = logs[_at(known, 0.99, each)]
    return mean, p99


def _by_node(
    node: NDArray[np.uint32], seconds: NDArray[np.float32], n: int, weight: Weight
) -> tuple[NDArray[np.uint32], Floats, Weight, NDArray[np.int64]]:
    """Node, seconds and weights of the known latencies, sorted by both, and how many requests each node has (n,)."""
    known = np.isfinite(seconds)
    order = np.lexsort((seconds[known], node[known]))
    who = node[known][order]
    each = picked(picked(weight, known), order)
    return who, seconds[known][order].astype(np.float64), each, count(who, each, n)


def _at(known: NDArray[np.int64], q: float, each: Weight) -> NDArray[np.int64]:
    """Where the q-quantile of each node that has any stands among what `_by_node` sorted."""
    rank = (np.cumsum(known) - known + np.ceil(q * known - 1e-9).astype(np.int64) - 1)[known > 0]
    return np.asarray(rank if each is None else np.searchsorted(np.cumsum(each, dtype=np.int64), rank, side="right"))
