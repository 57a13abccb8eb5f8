"""Adapters and tenants of a pool: numbers for rows, and the few that are watched as request classes.

A name has a *number* from when it is heard of. It gets a *seat*, one of the pool's bounded request classes, when a tick that
holds requests of it is closed; of several new names the most frequent first, then by name. So seats depend on event time and
names alone.
A name that nothing was heard of for `IDLE_S` gives its seat to a newcomer. Requests of names without a seat belong to no class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, count
from streams.judge.columns import constant

__all__ = ["IDLE_S", "MAX_NAMES", "Names"]

MAX_NAMES = 4096
IDLE_S = 600.0
_FREE = ""


class Names:
    """Names of one kind (adapters, or tenants).

    Args:
        n_seats: Classes of this kind.

    Attributes:
        seats: Name of each seat, "" for a free one.
        heard_s: When something was last heard of each seat, Unix seconds.
    """

    def __init__(self, n_seats: int) -> None:
        self.numbers: dict[str, int] = {}
        self.seats = [_FREE] * n_seats
        self.heard_s = [float("-inf")] * n_seats

    def of_rows(self, words: Sequence[str], codes: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """Number of the name of each row; 0 for none, and for names beyond `MAX_NAMES`.

        Args:
            words: Dictionary of the batch.
            codes: Index into it, `NO_CODE` where absent, (n,).
        """
        if not words:
            return constant(np.uint16(0), len(codes))
        table = np.zeros(len(words) + 1, np.uint16)
        for i, word in enumerate(words):
            number = self.numbers.get(word)
            if number is None:
                if len(self.numbers) >= MAX_NAMES or not word:
                    continue
                number = self.numbers[word] = len(self.numbers) + 1
            table[i] = number
        return table[np.minimum(codes, np.uint32(len(words)))]  # NO_CODE is the greatest

    def take_seats(
        self, t_s: float, numbers: NDArray[np.uint16], may_leave: Callable[[str], bool], weight: Weight = None
    ) -> tuple[NDArray[np.intp], list[int]]:
        """Seat the names of a closed tick.

        Args:
            t_s: End of the tick, Unix seconds.
            numbers: Of its rows, (n,).
            may_leave: Whether a seated name's breaker is closed.
            weight: Requests that each row stands for, (n,).

        Returns:
            Seat by number, -1 without one, (numbers + 1,); and the seats that changed hands.
        """
        heard = count(numbers, weight, len(self.numbers) + 1)
        seat = np.full(len(heard), -1, np.intp)
        for taken, name in enumerate(self.seats):
            if name != _FREE:
                number = self.numbers[name]
                seat[number] = taken
                if heard[number]:
                    self.heard_s[taken] = t_s
        present = np.flatnonzero(heard[1:]) + 1
        missing = present[seat[present] < 0]
        changed: list[int] = []
        if len(missing):
            words = list(self.numbers)
            for _, name in sorted((-int(heard[number]), words[number - 1]) for number in missing):
                place = self._free(t_s, may_leave)
                if place is None:
                    break
                if self.seats[place] != _FREE:
                    seat[self.numbers[self.seats[place]]] = -1
                self.seats[place], self.heard_s[place] = name, t_s
                seat[self.numbers[name]] = place
                changed.append(place)
        return seat, changed

    def _free(self, t_s: float, may_leave: Callable[[str], bool]) -> int | None:
        if _FREE in self.seats:
            return self.seats.index(_FREE)
        idle = [(heard_s, name) for heard_s, name in zip(self.heard_s, self.seats, strict=True) if t_s - heard_s >= IDLE_S]
        return next((self.seats.index(name) for _, name in sorted(idle) if may_leave(name)), None)

    def dump(self) -> list[Any]:
        """State for a snapshot."""
        return [list(self.numbers), self.seats, self.heard_s]

    def load(self, raw: list[Any]) -> None:
        """What `dump` wrote."""
        names, seats, self.heard_s = raw[0], list(raw[1]), list(raw[2])
        self.numbers = {name: i for i, name in enumerate(names, 1)}
        self.seats = seats
