"""What `slodrift replay` shows people: a line when something changes, a table at the end, warnings about the input."""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec
from rich.console import Console
from rich.table import Column, Table

from schemas.errors import SourceError
from schemas.policy_file import Policy
from schemas.results import Decision, Finding, Rejected, Result, Summary, Verdict
from streams.framing import Reject
from streams.sources.merge import InputStats

__all__ = ["RejectFile", "print_results", "print_summary", "warnings_of"]

_STYLES = {
    "OPEN": "red",
    "FORCED_OPEN": "red",
    "DEGRADED": "yellow",
    "STALLED": "red",
    "STALE": "yellow",
    "CLOSED": "green",
    "OK": "green",
}


_PAGE_WIDTH = 120  # of tables that go to a file or a pipe


class RejectFile:
    """Counts refused events and, when a file name is given, keeps them: JSON lines with input, line, reason and bytes.

    Bytes that are not UTF-8 are written as base64 under `raw_base64`.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.reasons: Counter[str] = Counter()
        self.first: tuple[str, Reject] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._file = Path(self._path).open("wb")
            except OSError as exc:
                raise SourceError(f"{self._path}: cannot be written: {exc.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, source: str, reject: Reject) -> None:
        """Take note of one refused event."""
        self.reasons[reject.reason] += 1
        if self.first is None:
            self.first = source, reject
        if self._file is not None:
            entry: dict[str, Any] = {
                "source": source,
                "line": reject.offset if reject.offset >= 0 else None,
                "reason": reject.reason,
                "detail": reject.detail,
            }
            try:
                entry["raw"] = reject.raw.decode()
            except UnicodeDecodeError:
                entry["raw_base64"] = base64.b64encode(reject.raw).decode()
            self._file.write(msgspec.json.encode(entry) + b"\n")


def print_results(results: Iterable[Result]) -> None:
    """One line for each decision, finding and change of a node's status."""
    console = _console()
    status: dict[tuple[str, str, str], str] = {}
    for result in results:
        line = _line(result, status)
        if line is not None:
            word, where, text = line
            console.print(f"{_clock(getattr(result, 't', 0.0))}  [{_STYLES.get(word, 'none')}]{word:<17}[/]  ", end="")
            console.print(f"{where}  {text}", markup=False)


def _line(result: Result, status: dict[tuple[str, str, str], str]) -> tuple[str, str, str] | None:
    if isinstance(result, Decision):
        extra = ", capped" if result.capped else ""
        return result.state, f"{result.pool} {result.scope} {result.subject}", f"{result.reason} ({result.mode}{extra})"
    if isinstance(result, Finding):
        where = result.pool if result.node is None else f"{result.pool} {result.node}"
        return "finding", where, " ".join(filter(None, (result.finding, result.cause)))
    if isinstance(result, Verdict):
        series = (result.pool, result.node, result.sli)
        before, status[series] = status.get(series, "LEARNING"), result.status
        if result.status == before or (result.status not in _STYLES) or (before not in _STYLES and result.status == "OK"):
            return None
        numbers = (("KL", result.kl_service_nats), ("evidence", result.evidence), ("p99.9", result.p999_s))
        text = ", ".join(f"{name} {value:.3g}" for name, value in numbers if value is not None)
        return result.status, f"{result.pool} {result.node} {result.sli}", text
    if isinstance(result, Rejected):
        return "rejected", f"{result.count} events", result.reason
    return None


def _clock(t: float) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{t:.0f}"


def _console() -> Console:
    console = Console(soft_wrap=True, highlight=False)
    return console if console.is_terminal else Console(soft_wrap=True, highlight=False, width=_PAGE_WIDTH)


def print_summary(
    summary: Summary, inputs: Sequence[InputStats], policy: Policy, cadence_s: Mapping[str, float] | None = None
) -> None:
    """Totals and one row a pool; `cadence_s` names the pools that were judged as aggregated series."""
    console = _console()
    copies = sum(stats.duplicates for stats in inputs)
    console.print(
        f"\n{summary.events} events, {summary.rejected} rejected, {copies} duplicates, {summary.ticks} ticks; "
        f"policy {policy.version} ({policy.source})", markup=False,
    )  # fmt: skip
    table = Table("pool", "nodes", "requests", "late", "opens", "findings")
    for pool, row in summary.pools.items():
        findings = ", ".join(f"{count} {name}" for name, count in row["findings"].items())
        table.add_row(pool, *(str(row[name]) for name in ("nodes", "requests", "late", "opens")), findings or "none")
    for pool, cadence in (cadence_s or {}).items():
        console.print(f"{pool}: one value every {cadence:g} s, judged as an aggregated series", markup=False)
    if summary.pools:
        console.print(table)
    if summary.against:
        _print_comparison(console, [summary.against["this"], summary.against["other"]])
    elif summary.labels:
        console.print(_labels_text(summary.labels), markup=False)


def _print_comparison(console: Console, policies: Sequence[dict[str, Any]]) -> None:
    names = ["trips", "only here", "alarms", "node time away"]
    labelled = bool(policies[0]["labels"])
    table = Table(
        Column("policy", overflow="fold"), *names, *(["false trips", "intercepted", "median delay"] if labelled else [])
    )
    for row in policies:
        cells = [
            f"{row['policy']} ({row['version']})", str(row["trips"]), str(len(row["trips_only_here"])), str(row["alarms"]),
            f"{row['node_away_s']:.0f} s",
        ]  # fmt: skip
        if labelled:
            scored = row["labels"]
            cells += [
                f"{scored['false_trips']} of {scored['trips']}", _ratio(scored["interception_ratio"]),
                _seconds(scored["median_delay_s"]),
            ]  # fmt: skip
        table.add_row(*cells)
    console.print(table)


def _labels_text(labels: dict[str, Any]) -> str:
    alarms = labels["alarms"]
    trips = (
        f"breakers met {_ratio(labels['interception_ratio'])} of those that name a node, median delay "
        f"{_seconds(labels['median_delay_s'])}, {labels['false_trips']} of {labels['trips']} trips were false; "
    )
    return (
        f"{labels['incidents']} labelled incidents: {'' if labels['interception_ratio'] is None else trips}"
        f"verdicts met {_ratio(alarms['met_ratio'])} of all, median delay {_seconds(alarms['median_delay_s'])}, "
        f"{alarms['false']} of {alarms['count']} alarms were false"
    )


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} s"


def warnings_of(inputs: Sequence[InputStats], refused: RejectFile, lateness_s: float, unjudged: int) -> Iterator[str]:
    """Sentences about input that may not be what was meant; `unjudged` events came after their tick had closed."""
    for stats in inputs:
        if stats.events == 0:
            yield f"{stats.name}: there are no events in it"
        if stats.late and unjudged:
            yield (
                f"{stats.name}: {stats.late} of {stats.events} events come more than {lateness_s:g} s after later ones; "
                f"{unjudged} events in all were too late to be judged: sort the file by ts, or raise lateness_s in the policy"
            )
    if refused.first is not None:
        source, reject = refused.first
        total = sum(refused.reasons.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in refused.reasons.most_common(5))
        first = f"{source}:{reject.offset}: {reject.detail}" if reject.offset >= 0 else reject.detail
        yield f"{total} events refused ({reasons}); the first is {first}; --rejects FILE keeps them"
