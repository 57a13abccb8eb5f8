"""The clock of a pool: event time that no single timestamp and no single node can move.

Each node has a watermark, the second-highest time it sent (one wild timestamp is not enough). The clock is the k-th highest
watermark of the nodes that are heard, k = 1 + a tenth of them, at least the second: nodes whose clocks are fast do not set it.
Nodes not heard while the others went on do not count, so one survivor moves the clock alone.

It is read at certain events only: when a few events passed the next tick boundary, and they are a quarter at least of all that
came since the first of them (copies from another hour and stamps that are a minute ahead are a few in a hundred); and it never
goes beyond what three quarters of the newest of these have reached. So what is late and what is not depends on the order of the
events alone, never on how many arrive in one call.

Events more than ten minutes ahead wait. If the clock moves on meanwhile, they were wild: rejected. If nothing else happens and
they go on, on more nodes than one (or on one for long), there was a gap in the data (a night, a file with a row an hour): the
clock jumps to the first of them. The first events of all wait like this too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.runs import raise_to, run_starts

__all__ = ["FUTURE_NS", "Taken", "VoteClock"]

FUTURE_NS = 600 * 10**9
_NEVER = np.iinfo(np.int64).min
_FIRST_LOOK, _LAST_LOOK = 8, 32  # events beyond a boundary before the watermarks are looked at; doubles while it stands still
_LOOK_SHARE = 8  # ... and where frames bring thousands of one node: an eighth of those that passed it since the clock stood there
_QUARTER = 4
_NEWEST = 32  # events beyond the boundary that are asked how far time has come
_WINDOW = 16_384  # events examined at once: what is behind the next reading is looked at again after it
_MANY, _MANY_AT_START = 100_000, 1000  # so many waiting events are believed whatever they span
_STATE = (
    "now_ns", "boundary_ns", "need", "count", "since", "passed", "pace_ns", "top_ns", "leap_ns", "waiting", "waiting_lo",
    "waiting_hi", "waiting_node", "waiting_mixed",
)  # fmt: skip


@dataclass(slots=True)
class Taken:
    """What became of a prefix of events: `n` were consumed; masks over them. `released`: the events that waited, these
    included, must be given again; `refuted`: the events that waited were wild.
    """

    n: int
    late: NDArray[np.bool_] | None
    waits: NDArray[np.bool_] | None
    released: bool = False
    refuted: bool = False


class VoteClock:
    """Event time of one stream of events.

    Args:
        tick_ns, lateness_ns: Grid and allowance; a tick may close when the clock is `lateness_ns` past its end.
        silence_ns: Progress of the others after which a node that was not heard does not count.

    Attributes:
        now_ns: The clock; None before the first few events.
    """

    def __init__(self, tick_ns: int, lateness_ns: int, silence_ns: int) -> None:
        self.tick_ns, self.lateness_ns, self.silence_ns = tick_ns, lateness_ns, silence_ns
        self.now_ns: int | None = None
        self.boundary_ns = _NEVER
        self.need, self.count, self.since, self.passed = 1, 0, 0, 0
        self.newest: list[int] = []
        self.pace_ns, self.top_ns = 0, _NEVER
        self.leap_ns = 0  # how far the clock last went in one step, where events are minutes apart
        self.waiting, self.waiting_lo, self.waiting_hi = 0, 0, 0
        self.waiting_node, self.waiting_mixed = -1, False
        self.high = np.empty(0, np.int64)
        self.mark = np.empty(0, np.int64)
        self.heard_ns = np.empty(0, np.int64)
        self.heard = np.empty(0, np.bool_)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.mark)
        never = np.full(more, _NEVER)
        self.high, self.mark = np.append(self.high, never), np.append(self.mark, never)
        self.heard_ns = np.append(self.heard_ns, np.full(more, self.pace_ns))
        self.heard = np.append(self.heard, np.zeros(more, np.bool_))

    def first_open_slot(self) -> int | None:
        """Slots before this one are closed."""
        return None if self.now_ns is None else (self.now_ns - self.lateness_ns) // self.tick_ns

    def take(self, node: NDArray[np.uint32], ts_ns: NDArray[np.int64]) -> Taken:
        """Consume events in order up to the next reading of the clock (at least one of them)."""
        if self.now_ns is None:
            return self._wait(len(ts_ns), np.arange(len(ts_ns)), node, ts_ns, None)
        node, ts_ns = node[:_WINDOW], ts_ns[:_WINDOW]
        ahead = np.flatnonzero(ts_ns >= self.boundary_ns)
        wild = ahead[:0] if len(ahead) == 0 else ahead[ts_ns[ahead] > self.now_ns + max(FUTURE_NS, 3 * self.leap_ns)]
        if len(wild):
            ahead = np.setdiff1d(ahead, wild, assume_unique=True)
        open_ns = (self.now_ns - self.lateness_ns) // self.tick_ns * self.tick_ns
        is_late = ts_ns < open_ns
        late = is_late if is_late.any() else None
        known = None if late is None else np.cumsum(~is_late).astype(np.intp)
        if len(wild):
            at = self._reads_at(ahead, 0, 0, known)
            reads = at < len(ahead)
            n = int(ahead[at]) + 1 if reads else len(ts_ns)
            if wild[0] < n:
                self._note(ts_ns[ahead[: at + 1]])
                late = None if late is None else late[:n]
                since = self._since(ahead, 0, 0, known, n)
                return self._wait(n, wild[wild < n], node, ts_ns, late, reads=reads, n_ahead=len(ahead), since=since)
        return self._pass(node, ts_ns, ahead, late, known, once=len(wild) > 0)

    def _pass(
        self, node: NDArray[np.uint32], ts_ns: NDArray[np.int64], ahead: NDArray[np.intp], late: NDArray[np.bool_] | None,
        known: NDArray[np.intp] | None, *, once: bool,
    ) -> Taken:  # fmt: skip
        """Consume events none of which waits, reading the clock on the way until it passes the boundary (or `once`)."""
        lo = seen = 0
        boundary_ns, refuted = self.boundary_ns, False
        while self.boundary_ns == boundary_ns and not refuted and lo < len(ts_ns):
            at = self._reads_at(ahead, seen, lo, known)
            reads = at < len(ahead)
            hi = int(ahead[at]) + 1 if reads else len(ts_ns)
            self._mark(node[lo:hi], ts_ns[lo:hi], None if late is None else late[lo:hi])
            self._note(ts_ns[ahead[seen : at + 1]])
            if reads:
                seen = at + 1
                refuted = self._read()
            else:
                self.since = self._since(ahead, seen, lo, known, hi)
                self.count += len(ahead) - seen
            lo = hi
            if once:
                break
        return Taken(lo, None if late is None or not late[:lo].any() else late[:lo], None, refuted=refuted)

    def _reads_at(self, ahead: NDArray[np.intp], seen: int, lo: int, known: NDArray[np.intp] | None) -> int:
        """Which of the events `ahead` of the boundary, from number `seen` on, brings the next reading; their number if none."""
        at = seen + max(self.need - self.count, 1) - 1
        while at < len(ahead):
            count = self.count + at - seen + 1
            missing = self._since(ahead, seen, lo, known, int(ahead[at]) + 1) - _QUARTER * count
            if missing <= 0:
                return at
            at += -(-missing // (_QUARTER - 1))  # each event ahead makes up for three others
        return len(ahead)

    def _note(self, ahead_ns: NDArray[np.int64]) -> None:
        if len(ahead_ns):
            self.newest = [*self.newest, *ahead_ns[-_NEWEST:].tolist()][-_NEWEST:]

    def _since(self, ahead: NDArray[np.intp], seen: int, lo: int, known: NDArray[np.intp] | None, end: int) -> int:
        """Events in time since the first one ahead, up to `end`; this call's segment begins at `lo`."""
        if self.count:
            start, before = lo, self.since
        elif seen < len(ahead):
            start, before = int(ahead[seen]), 0
        else:
            return 0
        if known is None:
            return before + end - start
        return before + int(known[end - 1]) - (int(known[start - 1]) if start else 0)

    def push(self, now_ns: int) -> Taken:
        """Time went on by other means (state events, the wall clock of a stream at its end)."""
        first = self.now_ns is None
        if self.now_ns is not None and now_ns <= self.now_ns:
            return Taken(0, None, None)
        self._set(now_ns)
        waited, self.waiting = self.waiting > 0, 0
        return Taken(0, None, None, released=first and waited, refuted=waited and not first)

    def believe_rest(self) -> Taken:
        """At the end of the input: believe what still waits if it is all there is, or if it goes on like a gap in the data."""
        gap = self.waiting >= 2 and self.waiting_hi - self.waiting_lo >= self.silence_ns
        if self.waiting == 0 or not (self.now_ns is None or gap):
            return Taken(0, None, None)
        self._set(self.waiting_lo)
        self.waiting = 0
        return Taken(0, None, None, released=True)

    def last(self) -> int | None:
        """Clock at the end of the input: the same vote on the highest times, since nothing follows that could refute them."""
        return None if self.now_ns is None else max(self.now_ns, self._vote(self.high))

    def _wait(
        self, n: int, wild: NDArray[np.intp], node: NDArray[np.uint32], ts_ns: NDArray[np.int64],
        late: NDArray[np.bool_] | None, *, reads: bool = False, n_ahead: int = 0, since: int = 0,
    ) -> Taken:  # fmt: skip
        """Some of the first `n` events are far ahead: let them wait; stop where they are believed."""
        times, who = ts_ns[wild], node[wild].astype(np.int64)
        low, high = np.minimum.accumulate(times), np.maximum.accumulate(times)
        first = self.waiting_node if self.waiting else int(who[0])
        mixed = np.logical_or.accumulate(who != first) | (self.waiting > 0 and self.waiting_mixed)
        if self.waiting:
            low, high = np.minimum(low, self.waiting_lo), np.maximum(high, self.waiting_hi)
        many = self.waiting + np.arange(1, len(wild) + 1)
        believed = np.flatnonzero(self._believed(many, high - low, mixed))
        released = len(believed) > 0
        stop = int(believed[0]) if released else len(wild) - 1
        if released:
            n = int(wild[stop]) + 1
        self.waiting, self.waiting_lo, self.waiting_hi = int(many[stop]), int(low[stop]), int(high[stop])
        self.waiting_node, self.waiting_mixed = first, bool(mixed[stop])
        waits = np.zeros(n, np.bool_)
        waits[wild[: stop + 1]] = True
        late = None if late is None else late[:n]
        refuted = False
        if self.now_ns is not None:
            self._mark(node[:n], ts_ns[:n], waits if late is None else waits | late)
        if released:
            self.leap_ns = 0 if self.now_ns is None else self.waiting_lo - self.now_ns
            self._set(self.waiting_lo)
            self.waiting = 0
        elif reads:
            refuted = self._read()
        else:
            self.count, self.since = self.count + n_ahead, since
        return Taken(n, late, waits, released=released, refuted=refuted)

    def _believed(self, many: NDArray[np.int64], span_ns: NDArray[np.int64], mixed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where the events that wait are enough to believe that time leapt."""
        enough = span_ns >= self.silence_ns
        if self.now_ns is None:
            enough |= many >= _MANY_AT_START
        elif self._seen() > 1:
            enough &= mixed
            enough |= span_ns >= FUTURE_NS
            enough |= many >= _MANY
        return enough & (many >= 3)

    def _seen(self) -> int:
        return int((self.high > _NEVER).sum())

    def _mark(self, node: NDArray[np.uint32], ts_ns: NDArray[np.int64], skip: NDArray[np.bool_] | None) -> None:
        """Raise the watermarks: keep the two highest different times of each node."""
        if skip is not None:
            node, ts_ns = node[~skip], ts_ns[~skip]
        if len(node) == 0:
            return
        starts = run_starts(node)
        top, second = np.full(len(self.high), _NEVER), np.full(len(self.high), _NEVER)
        raise_to(top, node, ts_ns, starts)
        raise_to(second, node, np.where(ts_ns < np.take(top, node), ts_ns, _NEVER), starts)
        rest = np.where(top == self.high, _NEVER, np.minimum(top, self.high))
        self.mark = np.maximum(np.maximum(self.mark, second), rest)
        self.high = np.maximum(self.high, top)
        self.heard[node if starts is None else node[starts]] = True

    def _vote(self, marks: NDArray[np.int64]) -> int:
        # Nodes heard only once have no watermark yet; they count, else the first node to have one would be alone.
        live = marks[(self.pace_ns - self.heard_ns <= self.silence_ns) & (self.high > _NEVER)]
        if len(live) == 0:
            return _NEVER
        k = 1 if len(live) == 1 else 1 + math.ceil(len(live) / 10)
        return int(np.partition(live, len(live) - k)[len(live) - k])

    def _read(self) -> bool:
        """Read the clock; True when that refutes what waits."""
        top = int(self.mark.max())
        if top > self.top_ns:
            # A node whose clock leaps adds a tick at most: the others are not silent because one is wild.
            self.pace_ns += self.tick_ns if self.top_ns == _NEVER else min(top - self.top_ns, self.tick_ns)
            self.top_ns = top
        self.heard_ns[self.heard] = self.pace_ns
        self.heard[:] = False
        now = self._vote(self.mark)
        if self.newest:
            now = min(now, sorted(self.newest)[(3 * (len(self.newest) - 1)) // 4])
        self.count, self.since, self.newest = 0, 0, []
        self.passed += self.need
        if self.now_ns is None or now <= self.now_ns:
            self._look_later()
            return False
        if now >= self.boundary_ns:
            step = now - self.now_ns
            self.leap_ns = step if step > FUTURE_NS // 2 else 0
            self._set(now)
        else:
            self.now_ns = now
            self._look_later()
        refuted, self.waiting = self.waiting > 0, 0
        return refuted

    def _set(self, now_ns: int) -> None:
        phase = self.lateness_ns % self.tick_ns
        self.now_ns = now_ns
        self.boundary_ns = ((now_ns - phase) // self.tick_ns + 1) * self.tick_ns + phase
        seen = self._seen()
        self.since, self.newest = 0, []
        self.need, self.count, self.passed = (min(2 * seen, _FIRST_LOOK) if seen > 1 else 1), 0, 0

    def _look_later(self) -> None:
        self.need = min(2 * self.need, max(_LAST_LOOK, self._seen() // 4, self.passed // _LOOK_SHARE))

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        arrays = {name: getattr(self, name).tobytes() for name in ("high", "mark", "heard_ns", "heard")}
        return {**{name: getattr(self, name) for name in _STATE}, **arrays, "newest": self.newest}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        for name in _STATE:
            setattr(self, name, raw.get(name, 0))  # `passed` is not in snapshots of the first version
        self.newest = list(raw.get("newest", []))
        for name, dtype in (("high", np.int64), ("mark", np.int64), ("heard_ns", np.int64), ("heard", np.bool_)):
            setattr(self, name, np.frombuffer(raw[name], dtype).copy())
