"""Which node a request goes to: least loaded or round-robin, among the nodes that the breaker decisions leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from streams.simulate.engine import Engine

__all__ = ["Gate", "Router", "RoutingRule", "Verdict"]

Verdict = Literal["allow", "probe", "deny"]
Gate = Callable[[str], Verdict]
"""What a serving host's breaker client says about a node. It is asked once for the node about to be used, so that a granted
probe is always sent."""
RoutingRule = Literal["least_loaded", "round_robin"]


class Router:
    """Chooses a node for each request.

    Args:
        rule: How to order the nodes.
        gate: Breaker decisions; None allows all.
    """

    def __init__(self, rule: RoutingRule = "least_loaded", gate: Gate | None = None) -> None:
        self._rule = rule
        self.gate = gate
        self._turn = 0
        self.failed_open = 0
        """Requests sent although every node was denied: no decision may take the whole fleet away."""

    def choose(self, engines: Sequence[Engine]) -> tuple[int, bool]:
        """Index of the node and whether the request is a half-open probe."""
        n = len(engines)
        first = self._turn % n
        self._turn += 1
        turns = range(first, first + n)
        if self._rule == "round_robin":
            order = [i % n for i in turns]
        elif self.gate is None:
            return min((i % n for i in turns), key=lambda i: engines[i].load), False
        else:  # ties go to the node whose turn it is, else the first ones would get all of a light load
            order = sorted((i % n for i in turns), key=lambda i: engines[i].load)
        if self.gate is None:
            return order[0], False
        for i in order:
            verdict = self.gate(engines[i].name)
            if verdict != "deny":
                return i, verdict == "probe"
        self.failed_open += 1
        return order[0], False
