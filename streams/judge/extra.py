"""Further detectors that the policy names (`detection.extra`): fed with every tick, shown in verdicts, asked by nobody.

Nothing here is seen by the rules that open a breaker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.extra import Channels, summaries
from detectors.rows import Rows
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from schemas.policy_extra import make_detector
from schemas.results import Verdict
from streams.judge.slots import ASKED, ERRORS, TOTAL, Slot
from streams.judge.status import REPEAT_S

__all__ = ["ExtraDetectors"]

_SHOWN_AT = {"error_ratio": "errors", "throughput": "throughput", "n": "throughput"}


class ExtraDetectors:
    """Channels of one pool.

    Args:
        policy: Of the pool; it names at least one.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        extras = policy.detection.extra
        # A verdict is repeated after a minute: a drift is held so long that one of them shows it.
        self.channels = Channels([(e.on, partial(make_detector, e)) for e in extras], math.ceil(REPEAT_S / policy.tick_s) + 1)
        self.tick_s = policy.tick_s
        self.names: list[str] = []
        for extra in extras:
            again = sum(name.split("#")[0] == extra.name for name in self.names)
            self.names.append(f"{extra.name}#{again + 1}" if again else extra.name)
        self._wanted: set[str] = {e.on for e in extras}
        self._settings = [e.model_dump(mode="json") for e in extras]
        self._drift: NDArray[np.bool_] = np.zeros((0, len(extras), len(LATENCY_SLIS)), np.bool_)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        self.channels.grow(n)

    def tick(self, slot: Slot, rows: Rows) -> None:
        """Take the requests of a closed tick."""
        counts = slot.counts
        self._drift = self.channels.update(
            summaries(self._wanted, rows, counts[ASKED], counts[TOTAL], counts[ERRORS], self.tick_s)
        )

    def show(self, verdicts: Iterable[Verdict], seats: Mapping[str, int]) -> None:
        """Write into each verdict what the channels of its series say."""
        for verdict in verdicts:
            latency = verdict.sli in LATENCY_SLIS
            sli = LATENCY_SLIS.index(verdict.sli) if latency else 0
            said = {
                name: bool(self._drift[seats[verdict.node], channel, sli])
                for channel, (name, (on, _)) in enumerate(zip(self.names, self.channels.watches, strict=True))
                if (on not in _SHOWN_AT if latency else _SHOWN_AT.get(on) == verdict.sli)
            }
            if said:
                verdict.extra = said

    def forget(self, nodes: NDArray[np.bool_]) -> None:
        """Start anew for `nodes`."""
        self.channels.forget(nodes)

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        return {"settings": self._settings, **self.channels.dump()}

    def load(self, raw: dict[str, Any] | None, n: int) -> None:
        """What `dump` wrote; channels that are others now start anew."""
        if raw is not None and raw["settings"] == self._settings:
            self.channels.load(raw)
        self.grow(n)
