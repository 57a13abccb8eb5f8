"""Deploys: for a while after one the old baseline still judges, so that a regression is seen; then the new normal is learnt.

Forgetting the baseline at the deploy itself would make every regression the new normal at once.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["WATCH_S", "Deploy", "Deploys"]

WATCH_S = 600.0
"""Drift that begins within this time after a deploy is the deploy's; the baseline is learnt anew after it."""
_MAX = 256


class Deploy(msgspec.Struct, frozen=True):
    """A change that was rolled out at `t_s`, to one node or to the pool (None)."""

    t_s: float
    node: str | None
    what: str


class Deploys:
    """Deploys of a pool that are under watch."""

    def __init__(self) -> None:
        self.watched: list[Deploy] = []

    def add(self, deploy: Deploy) -> None:
        """A deploy happened; a flood of them keeps the newest."""
        self.watched = sorted([*self.watched, deploy], key=lambda d: (d.t_s, d.node or "", d.what))[-_MAX:]

    def before(self, t_s: float, node: str | None) -> Deploy | None:
        """The newest watched deploy before `t_s` to `node` or to the whole pool (to the whole pool alone when None)."""
        for deploy in reversed(self.watched):
            if deploy.t_s <= t_s and (deploy.node is None or deploy.node == node):
                return deploy
        return None

    def across(self, t_s: float, nodes: list[str]) -> Deploy | None:
        """The newest watched deploy to the whole pool, or one of those that reached nine tenths of `nodes` one by one."""
        whole = self.before(t_s, None)
        if whole is not None or not nodes:
            return whole
        found = [deploy for node in nodes if (deploy := self.before(t_s, node)) is not None]
        return max(found, key=lambda d: (d.t_s, d.what)) if len(found) >= 0.9 * len(nodes) else None

    def due(self, t_s: float, index: dict[str, int], hurt: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Nodes whose baseline is to be learnt anew now, (N,), or None. Not where users are hurt: that is no new normal."""
        over = [d for d in self.watched if t_s - d.t_s >= WATCH_S]
        if not over:
            return None
        self.watched = [d for d in self.watched if t_s - d.t_s < WATCH_S]
        out = np.zeros(len(hurt), np.bool_)
        for deploy in over:
            if deploy.node is None:
                out[:] = True
            elif deploy.node in index:
                out[index[deploy.node]] = True
        return out & ~hurt

    def dump(self) -> list[Any]:
        """State for a snapshot."""
        return [msgspec.structs.astuple(d) for d in self.watched]

    def load(self, raw: list[Any]) -> None:
        """What `dump` wrote."""
        self.watched = [Deploy(*d) for d in raw]
