"""Open ticks: requests wait here by event time until the pool's clock closes their tick.

A tick's content is the set of its requests, whatever order they came in. They wait as rows, so that a tick is folded into
counts and histograms in one piece; when many wait, or a snapshot is taken, they are folded early and only the answers of
nodes that are being probed stay as rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.runs import raise_to, run_starts
from detectors.weights import count, picked, total
from schemas.batch import CONTRARY_ROUNDING, LATENCY_SLIS
from schemas.outcome import COUNTS_AGAINST_NODE, Outcome
from schemas.policy import PoolPolicy
from streams.judge.columns import constant
from streams.judge.rows import Rows
from streams.judge.scopes.covered import Covered

__all__ = [
    "ASKED",
    "CONTRARY",
    "EMPTY",
    "ERRORS",
    "FAILURES",
    "KV",
    "MAX_WAITING_ROWS",
    "PROBES_EXPLICIT",
    "TOTAL",
    "Slot",
    "Slots",
]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ASKED, TOTAL, ERRORS, FAILURES, KV, PROBES_EXPLICIT, CONTRARY, EMPTY = range(8)
"""Rows of `Slot.counts`: requests of any outcome; those that say something about the node (good, or against it); outcomes
against it; failures (those, or beyond a contractual SLO); foreign KV slots; requests marked as probes; requests whose first token
came after their end; good outcomes without a token."""
_N_COUNTS = 8
_TTFT, _E2E = LATENCY_SLIS.index("ttft_s"), LATENCY_SLIS.index("e2e_s")

MAX_WAITING_ROWS = 50_000
_LONG_RUN = 100  # rows of one tick one after the other, on average, that are worth a slice
_NEVER = np.iinfo(np.int64).min
_AGAINST = np.zeros(256, np.bool_)
_AGAINST[[int(o) for o in COUNTS_AGAINST_NODE]] = True
_OK = int(Outcome.OK)
_GOOD, _BAD, _BLANK = range(3)
_RAW = (("ts_ns", np.int64), ("node", np.uint32), ("bad", np.uint8), ("probe", np.int8), ("weight", np.uint32))

Ingest = Callable[[int, Rows], None]


@dataclass(slots=True)
class Slot:
    """One open tick.

    Attributes:
        waiting: Rows not folded yet.
        counts: int64 (8, N), see the constants of this module.
        asked_ns, served_ns: Last request, last good answer of each node, (N,); the least int64 for none.
        slo_total, slo_bad: Requests of the pool that count for each SLO, and the bad ones, (S,).
        raw: Answers of watched nodes, as columns `_RAW`.
        covered: What breakers of sessions and request classes look at.
    """

    n_slo: int
    waiting: list[Rows] = field(default_factory=list)
    counts: Ints = field(default_factory=lambda: np.zeros((_N_COUNTS, 0), np.int64))
    asked_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    served_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    slo_total: Ints = field(init=False)
    slo_bad: Ints = field(init=False)
    raw: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    covered: list[Covered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slo_total, self.slo_bad = np.zeros(self.n_slo, np.int64), np.zeros(self.n_slo, np.int64)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.asked_ns)
        if more > 0:
            self.counts = np.concatenate([self.counts, np.zeros((_N_COUNTS, more), np.int64)], axis=1)
            self.asked_ns = np.append(self.asked_ns, np.full(more, _NEVER))
            self.served_ns = np.append(self.served_ns, np.full(more, _NEVER))

    def settle(self, empty_is_bad: Bools) -> None:
        """Before `probes`: an answer without a token is a bad one at the nodes (N,) that do not usually give such."""
        self.raw = [
            (ts_ns, node, np.where((bad == _BLANK) & empty_is_bad[node], np.uint8(_BAD), bad), probe, weight)
            for ts_ns, node, bad, probe, weight in self.raw
        ]

    def probes(self, node: int, budget_per_s: int, marked: bool) -> tuple[int, int, dict[int, int]]:
        """Good and bad answers to probes of a half-open node: the requests marked as probes, or, where none ever is, the
        first ones of each second up to the budget; where rows stand for several requests nobody knows which came first, and as
        many are bad as their share is, rounded. And the hosts they came from, with the good ones of each (see
        `RequestBatch.probe`).
        """
        good = bad = 0
        hosts: dict[int, int] = {}
        for ts_ns, nodes, bad_ones, probe, weight in self._joined_raw():
            mine, failed = nodes == node, bad_ones == _BAD
            if marked:
                mine &= probe > 0
            ts_ns, failed, many = ts_ns[mine], failed[mine], weight[mine].astype(np.int64)
            for host, well in zip(np.maximum(probe[mine], 1).tolist(), np.where(failed, 0, many).tolist(), strict=True):
                hosts[host] = hosts.get(host, 0) + well
            if marked or not len(ts_ns):
                n, n_bad = int(many.sum()), int(many[failed].sum())
            elif many.max() == 1:
                order = np.lexsort((~failed, ts_ns))  # of equal times the bad first: never lucky by order
                second = ts_ns[order] // 10**9
                first = np.arange(len(order)) - np.searchsorted(second, second) < budget_per_s
                n, n_bad = int(first.sum()), int(failed[order][first].sum())
            else:
                of = np.unique(ts_ns // 10**9, return_inverse=True)[1]
                asked, wrong = count(of, many), count(of[failed], many[failed], int(of.max()) + 1)
                taken = np.minimum(asked, budget_per_s)
                n, n_bad = int(taken.sum()), int((taken * wrong / asked).sum() + 0.5)
            bad += n_bad
            good += n - n_bad
        return good, bad, hosts

    def _joined_raw(self) -> list[tuple[NDArray[Any], ...]]:
        if len(self.raw) > 1:
            self.raw = [tuple(np.concatenate(columns) for columns in zip(*self.raw, strict=True))]
        return self.raw


class Slots:
    """All open ticks of a pool.

    Args:
        policy: Of the pool.
        ingest: Takes the requests of a tick that were answered well, nodes by seat, for the histograms.
    """

    def __init__(self, policy: PoolPolicy, ingest: Ingest) -> None:
        self.tick_ns = round(policy.tick_s * 1e9)
        self.slo = [(LATENCY_SLIS.index(name), np.float32(slo.threshold)) for name, slo in sorted(policy.slo.items())]
        self.open: dict[int, Slot] = {}
        self.n_waiting = 0
        # A node may be half-open when a tick is closed though it was not when the tick's rows came: then keep all answers.
        self.keep_all = policy.lateness_s + 3 * policy.tick_s >= policy.breaker.open_s
        self.depth = math.ceil(policy.lateness_s / policy.tick_s) + 3
        """Ticks, from the first open one, that may be folded early."""
        self._ingest = ingest

    def add(self, rows: Rows) -> None:
        """Put rows into their ticks; none belongs to a closed one."""
        if len(rows) == 0:
            return
        slot = rows.ts_ns // self.tick_ns
        low, high = int(slot.min()), int(slot.max())
        self.n_waiting += len(rows)
        if low == high:
            self._slot(low).waiting.append(rows)
            return
        starts = np.concatenate([[0], np.flatnonzero(slot[1:] != slot[:-1]) + 1])
        if len(starts) * _LONG_RUN <= len(rows):  # frames are in order of time: cut, not picked
            ends = [*starts[1:].tolist(), len(rows)]
            for number, start, end in zip(slot[starts].tolist(), starts.tolist(), ends, strict=True):
                self._slot(number).waiting.append(rows.take(slice(start, end)))
            return
        for number in np.unique(slot).tolist():
            self._slot(number).waiting.append(rows.take(slot == number))

    def fold(self, first_open: int, seat: Ints, watched: Bools) -> None:
        """Fold what waits in ticks near the clock into counts and histograms (before a snapshot, or when much waits), but for
        nodes that have no seat yet.
        """
        for number, slot in self.open.items():
            if first_open <= number < first_open + self.depth:
                self._fold(number, slot, seat, watched)

    def numbers_in(self, number: int) -> list[int]:
        """Numbers of the nodes that wait in a tick."""
        slot = self.open.get(number)
        return [] if slot is None or not slot.waiting else np.unique(np.concatenate([r.node for r in slot.waiting])).tolist()

    def served_ns(self, number: int, seat: int) -> int:
        """Last good answer of a node (its number, and its seat or -1) in the open ticks, Unix ns; 0 for none."""
        last = 0
        for slot in self.open.values():
            if 0 <= seat < len(slot.served_ns):
                last = max(last, int(slot.served_ns[seat]))
            for rows in slot.waiting:
                mine = rows.ts_ns[(rows.node == number) & (rows.outcome == _OK)]
                last = max(last, int(mine.max(initial=0)))
        return last

    def close(self, number: int, seat: Ints, watched: Bools) -> Slot:
        """The folded tick `number`, which is open no more; empty when nothing came.

        Args:
            number: Of the tick.
            seat: Seat of each node number.
            watched: Seats whose answers are to be kept as rows, (N,).
        """
        slot = self.open.pop(number, None) or Slot(len(self.slo))
        self._fold(number, slot, seat, watched)
        return slot

    def _slot(self, number: int) -> Slot:
        slot = self.open.get(number)
        if slot is None:
            slot = self.open[number] = Slot(len(self.slo))
        return slot

    def _fold(self, number: int, slot: Slot, seat: Ints, watched: Bools) -> None:
        n = len(watched)
        slot.grow(n)
        if not slot.waiting:
            return
        rows = Rows.concat(slot.waiting)
        slot.waiting = []
        seats = seat[rows.node]
        if (seats < 0).any():
            slot.waiting = [rows.take(seats < 0)]
            rows, seats = rows.take(seats >= 0), seats[seats >= 0]
        self.n_waiting -= len(rows)
        rows = replace(rows, node=seats.astype(np.uint32))
        node, ok, against = rows.node, rows.outcome == _OK, _AGAINST[rows.outcome]
        over, weight = np.zeros(len(rows), np.bool_), rows.weight
        for s, (sli, threshold) in enumerate(self.slo):
            beyond = rows.latency_s[sli] > threshold
            beyond &= ok
            over |= beyond
            slot.slo_total[s] += total(ok & ~np.isnan(rows.latency_s[sli]), weight) + total(against, weight)
            slot.slo_bad[s] += total(beyond, weight) + total(against, weight)
        failed = against | over
        blank = ok & (rows.output_tokens == 0)
        counted = ok | against
        asked = count(node, weight, n)
        slot.counts[ASKED] += asked
        all_ok = bool(ok.all())
        slot.counts[TOTAL] += asked if all_ok else count(node[counted], picked(weight, counted), n)
        times, plus_s = CONTRARY_ROUNDING
        contrary = rows.latency_s[_TTFT] > rows.latency_s[_E2E] * times + plus_s  # False where one is unknown
        for row, mask in ((ERRORS, against), (FAILURES, failed), (KV, rows.kv_mismatch), (PROBES_EXPLICIT, rows.probe >= 1),
                          (CONTRARY, contrary), (EMPTY, blank)):  # fmt: skip
            if mask.any():
                slot.counts[row] += count(node[mask], picked(weight, mask), n)
        starts = run_starts(node)
        raise_to(slot.asked_ns, node, rows.ts_ns, starts)
        raise_to(slot.served_ns, node, rows.ts_ns if all_ok else np.where(ok, rows.ts_ns, _NEVER), starts)
        if self.keep_all or watched.any():
            keep = counted if self.keep_all else counted & watched[node]
            if keep.any():
                bad = np.where(failed, _BAD, np.where(blank, _BLANK, _GOOD)).astype(np.uint8)
                many = np.ones(len(rows), np.uint32) if weight is None else weight
                slot.raw.append((rows.ts_ns[keep], node[keep], bad[keep], np.maximum(rows.probe[keep], 0), many[keep]))
        if all_ok:
            ok, against = constant(np.True_, len(rows)), constant(np.False_, len(rows))
        slot.covered.append(Covered.of(rows, ok, against, failed if failed.any() else constant(np.False_, len(rows))))
        self._ingest(number, rows if all_ok else rows.take(ok))

    def dump(self) -> dict[str, Any]:
        """State for a snapshot; call `fold` first so that it is small."""
        return {
            "open": [
                {
                    "slot": number,
                    "waiting": [rows.dump() for rows in slot.waiting],
                    "n": len(slot.asked_ns),
                    "counts": slot.counts.tobytes(),
                    "asked": slot.asked_ns.tobytes(),
                    "served": slot.served_ns.tobytes(),
                    "slo": [slot.slo_total.tolist(), slot.slo_bad.tolist()],
                    "raw": [[column.tobytes() for column in columns] for columns in slot.raw],
                    "covered": Covered.concat(slot.covered).dump(),
                }
                for number, slot in sorted(self.open.items())
            ],
            "n_waiting": self.n_waiting,
        }

    def load(self, state: Mapping[str, Any], *, with_slos: bool) -> None:
        """What `dump` wrote; without its SLO counts where the SLOs are others now."""
        self.n_waiting = state["n_waiting"]
        for entry in state["open"]:
            slot = self.open[entry["slot"]] = Slot(len(self.slo))
            slot.waiting = [Rows.load(raw) for raw in entry["waiting"]]
            slot.counts = np.frombuffer(entry["counts"], np.int64).reshape(_N_COUNTS, entry["n"]).copy()
            slot.asked_ns = np.frombuffer(entry["asked"], np.int64).copy()
            slot.served_ns = np.frombuffer(entry["served"], np.int64).copy()
            if with_slos:
                slot.slo_total, slot.slo_bad = (np.array(values, np.int64) for values in entry["slo"])
            slot.raw = [
                tuple(np.frombuffer(raw, dtype) for raw, (_, dtype) in zip(_with_weight(columns), _RAW, strict=True))
                for columns in entry["raw"]
            ]
            slot.covered = [Covered.load(entry["covered"])]


def _with_weight(columns: list[bytes]) -> list[bytes]:
    """Columns of `_RAW`; snapshots of earlier versions have no weights."""
    if len(columns) == len(_RAW):
        return columns
    return [*columns, np.ones(len(columns[2]), np.uint32).tobytes()]
