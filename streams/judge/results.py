"""What a closed tick hands out."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.results import Decision, Finding, Verdict
from streams.judge.refused import Refused
from streams.judge.status import TickWindows

__all__ = ["TickOutput"]


@dataclass(slots=True)
class TickOutput:
    """Results of one tick of one pool; at the end of the input possibly one more that holds nothing but `rejected`.

    Attributes:
        t: End of the tick, Unix seconds.
        pool: Name.
        verdicts: Series whose status changed, or that were not spoken of for a minute; by node name and SLI.
        windows: All series of the tick, for the archive.
        findings: Episodes that began.
        decisions: Breaker moves, in order.
        rejected: Events refused since the last tick, by reason (`late`, `future`, `unknown_node`).
        refused: Of these, the ones that are nobody's fault but their own (`future`), with their JSON, for the dead letters.
        n_eligible: Nodes with fresh telemetry, what the caps were computed from.
    """

    t: float
    pool: str
    verdicts: list[Verdict] = field(default_factory=list)
    windows: TickWindows | None = None
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    n_eligible: int = 0
