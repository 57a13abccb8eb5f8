"""Labelled incidents, and how well trips and alarms met them.

Two formats are read. What `slodrift simulate` writes: `{"incidents": [{"pool", "node", "fault", "from", "to"}]}` (or the bare
list; times are Unix seconds, a null pool or node means all of them). And NAB's windows: `{"file": [[from, to], ...]}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from schemas.cells import parent_of
from schemas.errors import ConfigError
from schemas.results import Decision, Result, Verdict
from streams.sources.mapping import epoch_s

__all__ = ["Incident", "LabelScore", "load_labels"]

AFTERMATH_S = 120.0
"""What happens this soon after an incident is its aftermath: neither a hit nor false."""


class Incident(msgspec.Struct, rename={"from_s": "from", "to_s": "to"}):
    """One labelled incident; Unix seconds."""

    from_s: float
    to_s: float
    pool: str | None = None
    node: str | None = None
    fault: str = ""

    def concerns(self, pool: str, node: str) -> bool:
        """Whether the subject is the incident's, by name or because the incident names none."""
        return self.pool in (None, pool, parent_of(pool)) and self.node in (None, node)


def load_labels(path: str, inputs: Sequence[str]) -> list[Incident]:
    """Incidents of a labels file; of NAB windows those whose file is one of `inputs`.

    Raises:
        ConfigError: It cannot be read, or says nothing about `inputs`.
    """
    try:
        data = msgspec.json.decode(Path(path).read_bytes())
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror or exc}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from None
    try:
        if isinstance(data, dict) and "incidents" not in data:
            return _windows(path, data, inputs)
        return msgspec.convert(data["incidents"] if isinstance(data, dict) else data, list[Incident])
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"{path}: not a labels file: {exc}; it is a list of {{pool, node, fault, from, to}} or windows by file"
        ) from None


def _windows(path: str, data: dict[str, Any], inputs: Sequence[str]) -> list[Incident]:
    wanted = {name: windows for name, windows in data.items() if any(_same_file(name, path) for path in inputs)}
    if not wanted:
        raise ConfigError(f"{path}: no windows for {', '.join(inputs)}; it has {', '.join(list(data)[:3])} ...")
    return [Incident(from_s=epoch_s(a), to_s=epoch_s(b)) for windows in wanted.values() for a, b in windows]


def _same_file(name: str, path: str) -> bool:
    """The path ends with the name: whole folders, not a part of one."""
    parts, tail = Path(path).parts, Path(name).parts
    return bool(tail) and parts[-len(tail) :] == tail


class LabelScore:
    """Meets results, which come in order of time, with incidents.

    A *trip* is a node's breaker that opens (not again after a failed half-open); an *alarm* is a node that becomes DEGRADED in
    any SLI. Incidents without a node are about whole pools: no node should be tripped for them, so only alarms can meet them.
    """

    def __init__(self, incidents: Sequence[Incident]) -> None:
        self._incidents = list(incidents)
        self._open: set[tuple[str, str]] = set()
        self._degraded: dict[tuple[str, str], set[str]] = {}
        self._trips: list[tuple[float, str, str]] = []
        self._alarms: list[tuple[float, str, str]] = []

    def add(self, result: Result) -> None:
        """Take note of one result."""
        if isinstance(result, Decision) and result.scope == "node" and not result.capped:
            subject = (result.pool, result.subject)
            if result.state == "CLOSED":
                self._open.discard(subject)
            elif result.state == "OPEN" and subject not in self._open:
                self._open.add(subject)
                self._trips.append((result.t, *subject))
        elif isinstance(result, Verdict):
            slis = self._degraded.setdefault((result.pool, result.node), set())
            if result.status != "DEGRADED":
                slis.discard(result.sli)
                return
            if not slis:
                self._alarms.append((result.t, result.pool, result.node))
            slis.add(result.sli)

    def summary(self) -> dict[str, Any]:
        """Ratios, null where there is nothing to divide by; delays in seconds from the start of an incident."""
        trips = _meet(self._trips, [i for i in self._incidents if i.node is not None], self._incidents)
        alarms = _meet(self._alarms, self._incidents, self._incidents)
        return {
            "incidents": len(self._incidents),
            "trips": trips["count"],
            "false_trips": trips["false"],
            "false_trip_ratio": trips["false_ratio"],
            "intercepted": trips["met"],
            "interception_ratio": trips["met_ratio"],
            "median_delay_s": trips["median_delay_s"],
            "alarms": alarms,
        }


def _meet(
    events: Iterable[tuple[float, str, str]], targets: Sequence[Incident], excuses: Sequence[Incident]
) -> dict[str, int | float | None]:
    """`targets` are to be met; an event during one of `excuses`, or in its aftermath, is not false."""
    events = list(events)
    false = sum(
        not any(i.concerns(pool, node) and i.from_s <= t <= i.to_s + AFTERMATH_S for i in excuses) for t, pool, node in events
    )
    delays = []
    for target in targets:
        hits = [t for t, pool, node in events if target.concerns(pool, node) and target.from_s <= t <= target.to_s]
        if hits:
            delays.append(min(hits) - target.from_s)
    return {
        "count": len(events),
        "false": false,
        "false_ratio": round(false / len(events), 6) if events else None,
        "targets": len(targets),
        "met": len(delays),
        "met_ratio": round(len(delays) / len(targets), 6) if targets else None,
        "median_delay_s": round(median(delays), 6) if delays else None,
    }
