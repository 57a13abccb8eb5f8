"""Two policies over the same events: what each would have done, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from schemas.results import Decision, Result, Verdict
from streams.labels import Incident, LabelScore

__all__ = ["Tally"]

MATCH_S = 60.0
"""Trips of the same node this close together are the same trip."""


class Tally:
    """What one policy did: trips, alarms, node time taken away, and labels if there are any.

    Args:
        name: Of the policy.
        version: Of the policy.
        incidents: Labelled incidents; None when there are no labels.
    """

    def __init__(self, name: str, version: str, incidents: Sequence[Incident] | None = None) -> None:
        self.name, self.version = name, version
        self._score = LabelScore(incidents) if incidents is not None else None
        self._away_since: dict[tuple[str, str], float] = {}
        self._away_s = 0.0
        self._degraded: dict[tuple[str, str], set[str]] = {}
        self._alarms = 0
        self._last_s = 0.0
        self.trips: list[tuple[float, str, str]] = []

    def noted(self, results: Iterator[Result]) -> Iterator[Result]:
        """The same results, taken note of."""
        for result in results:
            self.add(result)
            yield result

    def add(self, result: Result) -> None:
        """Take note of one result; they come in order of time."""
        if self._score is not None:
            self._score.add(result)
        self._last_s = max(self._last_s, getattr(result, "t", 0.0))
        if isinstance(result, Decision) and result.scope == "node" and not result.capped:
            subject = (result.pool, result.subject)
            if result.state == "CLOSED":
                if subject in self._away_since:
                    self._away_s += result.t - self._away_since.pop(subject)
            elif subject not in self._away_since:
                self._away_since[subject] = result.t
                if result.state == "OPEN":
                    self.trips.append((result.t, *subject))
        elif isinstance(result, Verdict):
            slis = self._degraded.setdefault((result.pool, result.node), set())
            if result.status != "DEGRADED":
                slis.discard(result.sli)
            else:
                self._alarms += not slis
                slis.add(result.sli)

    def labels(self) -> dict[str, Any]:
        """Score against the labels; empty without labels."""
        return self._score.summary() if self._score is not None else {}

    def summary(self, other: Tally | None = None) -> dict[str, Any]:
        """Figures of this policy; with another, also the trips that only this one made."""
        away_s = self._away_s + sum(self._last_s - since for since in self._away_since.values())
        figures: dict[str, Any] = {
            "policy": self.name, "version": self.version, "trips": len(self.trips), "alarms": self._alarms,
            "node_away_s": round(away_s, 3), "labels": self.labels(),
        }  # fmt: skip
        if other is not None:
            figures["trips_only_here"] = [
                {"t": t, "pool": pool, "node": node}
                for t, pool, node in self.trips
                if not any(p == pool and n == node and abs(t - at) <= MATCH_S for at, p, n in other.trips)
            ]
        return figures
