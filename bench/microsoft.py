"""Benchmark D: 23 hourly latency series of API dependencies from Microsoft's cloud monitoring data, event F1.

Consecutive labelled rows are one event. The first 15 % of the rows are learning and not scored. Alarms fewer than 6 rows apart
are one alarm, at its first row. An alarm hits an event from 1 row before it to 3 rows after it; any other is false. Precision
counts hit events against false alarms. One configuration and one threshold for all series; every detector gets the threshold that
suits it best, and series mode is also shown at the threshold that follows from its own target.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.peers import PEERS, every
from bench.report import Report, data_folder
from bench.series_mode import surprises, thin
from detectors.series import VIEWS, SeriesDetector, SeriesSettings

__all__ = ["Labelled", "Outcome", "event_outcome", "load", "run"]

Floats = NDArray[np.float64]
LEARNING, APART, BEFORE, AFTER = 0.15, 6, 1, 3
STEP_S = 3600.0


@dataclass(frozen=True)
class Labelled:
    """One series: Unix seconds, values, and whether each row is labelled as anomalous."""

    name: str
    times: Floats
    values: Floats
    label: NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """Counts over all series."""

    events: int
    hits: int
    false: int
    rows: int

    @property
    def recall(self) -> float:
        return self.hits / max(self.events, 1)

    @property
    def precision(self) -> float:
        return self.hits / max(self.hits + self.false, 1)

    @property
    def f1(self) -> float:
        return 2 * self.hits / max(self.events + self.hits + self.false, 1)


def load(folder: Path) -> list[Labelled]:
    """The latency series in `folder`, sorted by name."""
    found = []
    for path in sorted((folder / "data" / "middle-tier-api-dependency-latency").glob("*.csv")):
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        times = np.array([r["TimeStamp"].rstrip("Z") for r in rows], dtype="datetime64[s]").astype(np.float64)
        values = np.array([r["Value"] for r in rows], dtype=np.float64)
        found.append(Labelled(path.stem, times, values, np.array([r["Label"] == "1" for r in rows])))
    return found


def event_outcome(series: Sequence[Labelled], alarms: Sequence[NDArray[np.bool_]]) -> Outcome:
    """Events hit and false alarms over all series."""
    events = hits = false = scored = 0
    for one, alarm in zip(series, alarms, strict=True):
        n = len(one.values)
        start = int(LEARNING * n)
        scored += n - start
        edge = np.diff(np.r_[0, one.label.astype(int), 0])
        spans = [
            (max(a, start), b)
            for a, b in zip(np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1, strict=True)
            if b >= start
        ]
        rows = np.flatnonzero(alarm[start:]) + start
        first = rows[np.r_[True, np.diff(rows) >= APART]] if len(rows) else rows
        inside = np.array([[a - BEFORE <= r <= b + AFTER for a, b in spans] for r in first]).reshape(len(first), len(spans))
        events += len(spans)
        hits += int(inside.any(axis=0).sum())
        false += int((~inside.any(axis=1)).sum())
    return Outcome(events, hits, false, scored)


def best_threshold(series: Sequence[Labelled], scores: Sequence[Floats]) -> tuple[float, Outcome]:
    """The threshold with the highest F1, of at most 200 quantiles of the positive scores."""
    positive = np.unique(np.concatenate([s[s > 0] for s in scores]))
    if not len(positive):
        return float("inf"), event_outcome(series, [s > 0 for s in scores])
    tried = np.unique(np.quantile(positive, np.linspace(0, 1, 200), method="nearest"))
    outcomes = [(float(t), event_outcome(series, [s >= t for s in scores])) for t in tried]
    return max(outcomes, key=lambda pair: pair[1].f1)


def run(seed: int, *, quick: bool = False) -> Report:
    """Run the benchmark; nothing in it is random, `seed` only moves the dummies' start."""
    series = load(data_folder("msft_cloud_monitoring"))
    report = Report(
        "microsoft",
        f"D. Microsoft cloud monitoring: {len(series)} API latency series, hourly",
        ("detector", "F1", "recall", "precision", "events hit", "false alarms", "false/series/day", "threshold"),
        seed,
    )

    def add(name: str, outcome: Outcome, threshold: float | None) -> None:
        per_day = outcome.false / (outcome.rows * STEP_S / 86400)
        cells = (outcome.f1, outcome.recall, outcome.precision, f"{outcome.hits} of {outcome.events}", outcome.false, per_day)
        report.add(name, *cells, threshold)

    settings = SeriesSettings()
    views = surprises([(s.times, s.values) for s in series], settings)
    thinned = [thin(v.max(axis=1), settings.refractory_rows, 1e-9) for v in views]
    threshold, ours = best_threshold(series, thinned)
    add("slodrift series mode", ours, threshold)
    own = SeriesDetector(1, STEP_S, settings).threshold_nats
    add(f"  at its target, {settings.false_alarms_per_day:g}/series/day", event_outcome(series, [t > own for t in thinned]), own)
    for i, view in enumerate(VIEWS):
        at, outcome = best_threshold(series, [thin(v[:, i], settings.refractory_rows, 1e-9) for v in views])
        add(f"  its view '{view}' alone", outcome, at)
    for name, peer in PEERS.items():
        if not (quick and "KSWIN" in name):
            at, outcome = best_threshold(series, [peer(s.values) for s in series])
            add(name, outcome, at)
    for rows in (24, 168):
        add(f"dummy, every {rows} rows", event_outcome(series, [_dummy(rows, seed)(s.values) > 0 for s in series]), None)
    report.bar(f"series mode F1 {ours.f1:.3f} >= 0.40", ours.f1 >= 0.40)
    report.notes.append("labels are sparse and disputable: read the scores against each other")
    return report


def _dummy(rows: int, seed: int) -> Callable[[Floats], Floats]:
    return lambda values: np.roll(every(rows)(values), seed % rows)
