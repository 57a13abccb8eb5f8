"""The loop between Redis and a gate, without its I/O: what to read next, what to make of it, how long to wait.

The threaded and the asyncio client do the same reads in the same order; they share this. The doorbell only saves waiting:
every state is found by the regular look at the heads as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from slodrift_client.contract import Keys, Refused
from slodrift_client.gate import Counters
from slodrift_client.lastgood import LastGood
from slodrift_client.view import PoolView

__all__ = ["Reader"]

POLL_S = 1.0
JITTER_RATIO = 0.2
BACKOFF_S = 5.0
MIN_GAP_S = 0.02
"""A doorbell that rings without end makes the client look no more often than this, seconds."""
MAX_DRAIN = 100
SAVE_EVERY_S = 60.0


class Reader:
    """Steps of one client's loop.

    Args:
        views: The pools.
        counters: Where reads and failures are counted.
        state_dir: Folder of the last-known-good files; None keeps none.
        clock: Monotonic seconds.
        wall: Unix seconds, for the age of files.
        rng: For jitter.
    """

    def __init__(
        self,
        views: dict[str, PoolView],
        counters: Counters,
        *,
        state_dir: Path | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._views = views
        self._counters = counters
        self._files = None if state_dir is None else LastGood(state_dir, wall)
        self._clock = clock
        self._rng = rng
        self._delay_s = POLL_S
        self._raw: dict[str, tuple[bytes, bytes]] = {}
        self._saved: dict[str, tuple[object, float]] = {}
        self.keys = {pool: Keys(view.fleet, pool) for pool, view in views.items()}

    @property
    def head_keys(self) -> list[str]:
        """What to read first, one key per pool."""
        return [keys.head for keys in self.keys.values()]

    @property
    def keeps_files(self) -> bool:
        """Whether there are last-known-good files to write."""
        return self._files is not None

    @property
    def doorbells(self) -> list[str]:
        """Channels to subscribe to."""
        return [keys.doorbell for keys in self.keys.values()]

    def take_heads(self, raws: Sequence[bytes | str | None]) -> list[str]:
        """Values of `head_keys`. Returns the pools whose head and snapshot must now be read in one step."""
        now = self._clock()
        self._counters.polls += 1
        wanted = []
        for (pool, view), raw in zip(self._views.items(), raws, strict=True):
            if raw is None:  # unknown, which is not "all closed": the state only grows old
                continue
            try:
                head = _bytes(raw)
                if view.offer_head(head, now):
                    wanted.append(pool)
                elif pool in self._raw:
                    self._raw[pool] = head, self._raw[pool][1]
            except Refused as refusal:
                view.refuse(refusal)
        return wanted

    def take_pair(self, pool: str, raw_head: bytes | str | None, raw_snapshot: bytes | str | None) -> None:
        """Head and snapshot of one pool, read in one step."""
        view = self._views[pool]
        if raw_head is None:
            return
        try:
            if raw_snapshot is None:
                raise Refused("mismatch", "the head names a snapshot that is not there")
            head, snapshot = _bytes(raw_head), _bytes(raw_snapshot)
            view.offer(head, snapshot, self._clock())
            self._raw[pool] = head, snapshot
        except Refused as refusal:
            view.refuse(refusal)

    def succeeded(self) -> None:
        """All of it could be read."""
        self._delay_s = POLL_S
        self._counters.last_error = ""

    def failed(self, error: BaseException) -> None:
        """Redis could not be read; wait longer each time, and not all hosts alike."""
        self._counters.errors += 1
        self._counters.last_error = f"{type(error).__name__}: {error}"[:300]
        self._delay_s = min(BACKOFF_S, self._rng.uniform(POLL_S, 3.0 * self._delay_s))

    def delay_s(self) -> float:
        """How long to wait for the doorbell before the next look, seconds."""
        return self._delay_s * self._rng.uniform(1.0 - JITTER_RATIO, 1.0 + JITTER_RATIO)

    def load_files(self) -> None:
        """Believe the last-known-good files, as far as they pass every check."""
        for pool, view in self._views.items():
            if self._files is None:
                return
            try:
                saved = self._files.load(view.fleet, pool)
                if saved is not None:
                    view.offer(saved.raw_head, saved.raw_snapshot, self._clock(), file_age_s=saved.age_s)
            except (OSError, ValueError):
                self._counters.file_errors += 1
            except Refused as refusal:
                self._counters.file_errors += 1
                view.refuse(refusal)

    def save_files(self) -> None:
        """Write what is new, and now and then what is not, so that a file says when its state was last confirmed."""
        if self._files is None:
            return
        now = self._clock()
        for pool, (raw_head, raw_snapshot) in self._raw.items():
            view = self._views[pool]
            version, at = self._saved.get(pool, (None, float("-inf")))
            known = None if view.head is None else view.head.version
            confirmed = view.source(now) == "fresh"
            if not confirmed or (version == known and now - at < SAVE_EVERY_S):
                continue
            try:
                self._files.save(view.fleet, pool, raw_head, raw_snapshot)
                self._saved[pool] = known, now
            except OSError as exc:
                self._counters.file_errors += 1
                self._counters.last_error = f"last-known-good file: {exc}"[:300]
                self._saved[pool] = version, now  # a full disk is not asked every second


def _bytes(raw: bytes | str) -> bytes:
    return raw.encode() if isinstance(raw, str) else raw  # a client made with decode_responses
