"""The story of the demo, step by step: each waits for what the pipeline says and gives up after its deadline.

Nothing here is scripted but the fault and its end: every number told was read from a topic, from Redis by the client, or from
ClickHouse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slodrift_client import BreakerClient

from schemas.results import BreakerState, Decision
from streams.demo.host import HostGate
from streams.demo.narrator import Narrator
from streams.demo.results import PipelineResults, Series
from streams.demo.traffic import LiveFleet

__all__ = ["Deadlines", "Story"]

_SLI = "ttft_s"
_RECENT_S = 3.0
_BAD = ("DEGRADED", "STALLED")


@dataclass(frozen=True)
class Deadlines:
    """How long each step may take, seconds."""

    learn_s: float = 45.0
    drift_s: float = 15.0
    open_s: float = 15.0
    told_s: float = 5.0
    traffic_s: float = 10.0
    half_open_s: float = 25.0
    close_s: float = 25.0


@dataclass
class Story:
    """Tells and checks one fault from beginning to end.

    Attributes:
        opened: The decision that opened the breaker, once it was taken.
    """

    node: str
    pool: str
    fault: str
    strength: float
    fleet: LiveFleet
    results: PipelineResults
    client: BreakerClient
    gate: HostGate
    narrator: Narrator
    check: Callable[[], None]
    deadlines: Deadlines = field(default_factory=Deadlines)
    opened: Decision | None = None

    def tell(self) -> None:
        """All steps.

        Raises:
            NotInTime: One did not happen; the message says which.
        """
        self._learn()
        fault = self.fleet.inject(self.fault, self.node, self.strength)
        self.narrator.say("FAULT", f"{self.fault} at {self.node}, strength {self.strength:g}: {fault.kind.about}")
        self._drift()
        self.opened = self._decision("OPEN", self.deadlines.open_s)
        self._allow(False, self.opened)
        self._traffic_leaves()
        self.fleet.remove(fault)
        self.narrator.say("REPAIRED", f"{self.fault} at {self.node} is over")
        self._decision("HALF_OPEN", self.deadlines.half_open_s)
        before = self.gate.probes
        closed = self._decision("CLOSED", self.deadlines.close_s)
        self.narrator.say(
            "probes", f"{self.gate.probes - before} probes reached {self.node}, then it got its requests back in steps"
        )
        self._allow(True, closed)
        self._traffic_returns()

    def _wait(self, look: Callable[[], object | None], what: str, deadline_s: float) -> object:
        return self.results.wait(look, what, deadline_s, self.check)

    def _learn(self) -> None:
        def learned() -> list[Series] | None:
            rows = [row for (_, sli), row in self.results.series.items() if sli == _SLI]
            nodes = len(self.fleet.fleet.spec.nodes)
            return rows if len(rows) == nodes and all(row.baseline == "ACTIVE" for row in rows) else None

        self.results.wait(lambda: self.results.series, "a first window", self.deadlines.learn_s, self.check)
        self.narrator.say("learning", f"first windows of {self.pool}; no verdict before the baselines have learned")
        self.results.wait(learned, "learning the baselines", self.deadlines.learn_s, self.check)
        learned_count = sum(row.baseline == "ACTIVE" for row in self.results.series.values())
        row = self.results.series[self.node, _SLI]
        self.narrator.say("learned", f"{learned_count} series have a baseline; {_SLI} of {self.node}: {_tail(row)}")

    def _drift(self) -> None:
        def degraded() -> Series | None:
            """The strongest of the bad series, once its window has filled again, or the breaker has opened for another reason."""
            bad = [row for (node, _), row in self.results.series.items() if node == self.node and row.status in _BAD]
            best = max(bad, key=_strength, default=None)
            opened = any(d.subject == self.node for d in self.results.decisions)
            return best if best is not None and (_strength(best) > _NO_STRENGTH or opened) else None

        row = self.results.wait(degraded, f"a bad verdict about {self.node}", self.deadlines.drift_s, self.check)
        text = f"{self.node} {row.sli} is {row.status}"
        if not math.isnan(row.kl_nats):  # an error ratio has no histogram
            text += f": KL {row.kl_nats:.2f} nats (workload {row.kl_mix_nats:.2f}, service {row.kl_service_nats:.2f})"
            text += f", evidence e^{row.log_evidence:.1f}, threshold e^{row.log_threshold:.1f}; {_tail(row)}"
        self.narrator.say("drift", text)

    def _decision(self, state: BreakerState, deadline_s: float) -> Decision:
        def found() -> Decision | None:
            about = [d for d in self.results.decisions if d.subject == self.node and not d.capped]
            return about[-1] if about and about[-1].state == state else None

        decision = self.results.wait(found, f"{state} of {self.node}", deadline_s, self.check)
        self.narrator.say(state, f"{decision.reason} [{decision.mode}, tx {decision.tx[:8]}]")
        return decision

    def _allow(self, expected: bool, decision: Decision) -> None:
        def answer() -> str | None:
            return "yes" if self.client.allow(self.node, self.pool) is expected else None

        self.results.wait(answer, f"allow({self.node!r}) turning {expected}", self.deadlines.told_s, self.check)
        behind_s = time.time() - decision.t
        word = "allowed" if expected else "refused"
        self.narrator.say(word, f"client.allow({self.node!r}) is {expected}, {behind_s:.1f} s after the end of the deciding tick")

    def _traffic_leaves(self) -> None:
        def left() -> tuple[int, int] | None:
            here, everywhere = self.fleet.sent(self.node, _RECENT_S)
            return (here, everywhere) if everywhere and not here else None

        here, everywhere = self.results.wait(left, f"traffic leaving {self.node}", self.deadlines.traffic_s, self.check)
        self.narrator.say("obeyed", f"{here} of the last {everywhere} requests went to {self.node}")

    def _traffic_returns(self) -> None:
        def back() -> tuple[int, int] | None:
            here, everywhere = self.fleet.sent(self.node, _RECENT_S)
            return (here, everywhere) if here > 0.5 * everywhere / len(self.fleet.fleet.spec.nodes) else None

        here, everywhere = self.results.wait(back, f"traffic returning to {self.node}", self.deadlines.traffic_s, self.check)
        self.narrator.say("obeyed", f"{here} of the last {everywhere} requests went to {self.node}")


_NO_STRENGTH = (False, -math.inf)


def _strength(row: Series) -> tuple[bool, float]:
    """How much a series says by itself. The corrected KL of a handful of samples is below zero and tells nobody anything."""
    if not row.alarm or math.isnan(row.kl_nats) or row.kl_nats <= 0:
        return _NO_STRENGTH
    return True, float(row.log_evidence - row.log_threshold)


def _tail(row: Series) -> str:
    named = {"P99.9": row.p999_s, "threshold": row.threshold_s, "SLO": row.slo_s}
    return ", ".join(f"{name} {value:.2f} s" for name, value in named.items() if not math.isnan(value))
