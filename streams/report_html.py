"""The report of a replay: one HTML file that needs nothing else, to be mailed or kept with a change of policy.

For each series: reference and current histogram over the same bins, what each bin adds to KL, the score against its threshold
over time. For each pool: when which breaker was open, decisions and findings; above all a table.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from detectors.view import contributions_nats
from schemas.batch import LATENCY_SLIS
from schemas.errors import SinkError
from schemas.policy_file import Policy
from schemas.results import Decision, Summary
from streams.report_svg import Span, histogram, lanes, score
from streams.report_trace import PoolTrace

__all__ = ["render", "spans_of", "write_report"]

MOST_SERIES = 64
"""Series that are drawn, the most suspicious first; the rest is counted."""
OPENED = 6
"""Series whose charts are unfolded."""
MOST_ROWS = 200


def write_report(path: str, summary: Summary, policy: Policy, traces: Sequence[PoolTrace], inputs: Sequence[str]) -> None:
    """Write the report to `path`.

    Raises:
        SinkError: It cannot be written.
    """
    try:
        Path(path).write_text(render(summary, policy, traces, inputs), encoding="utf-8")
    except OSError as exc:
        raise SinkError(f"{path}: cannot be written: {exc.strerror}") from None


def render(summary: Summary, policy: Policy, traces: Sequence[PoolTrace], inputs: Sequence[str]) -> str:
    """The report as text."""
    style = importlib.resources.files("streams").joinpath("report.css").read_text(encoding="utf-8")
    head = f"Replay of {', '.join(inputs)}"
    facts = (
        f"{summary.events} events, {summary.rejected} rejected, {summary.ticks} ticks; policy {policy.version} ({policy.source})"
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(head)}</title><style>{style}</style></head><body><main>",
        f"<h1>{escape(head)}</h1><p>{escape(facts)}</p>",
        _pools_table(summary),
        _comparison(summary),
        _labels(summary.labels),
        *(_pool(trace) for trace in traces),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    def cells(row: Sequence[Any]) -> str:
        kinds = (' class="n"' if i in numbers else "" for i in range(len(row)))
        return "".join(f"<td{kind}>{escape(str(cell))}</td>" for kind, cell in zip(kinds, row, strict=True))

    head = "".join(f"<th{' class=n' if i in numbers else ''}>{escape(word)}</th>" for i, word in enumerate(header))
    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pools_table(summary: Summary) -> str:
    rows = []
    for pool, row in summary.pools.items():
        findings = ", ".join(f"{count} {name}" for name, count in row["findings"].items())
        rows.append((pool, row["nodes"], row["requests"], row["late"], row["rejected"], row["opens"], findings or "none"))
    return _table(("pool", "nodes", "requests", "late", "rejected", "opens", "findings"), rows, range(1, 6))


def _comparison(summary: Summary) -> str:
    if not summary.against:
        return ""
    rows = [
        (f"{r['policy']} ({r['version']})", r["trips"], len(r["trips_only_here"]), r["alarms"], f"{r['node_away_s']:.0f} s")
        for r in (summary.against["this"], summary.against["other"])
    ]
    table = _table(("policy", "trips", "only here", "alarms", "node time away"), rows, range(1, 5))
    return f"<h2>Two policies over the same events</h2>{table}"


def _labels(labels: dict[str, Any]) -> str:
    if not labels:
        return ""
    alarms = labels["alarms"]
    rows = [
        ("breakers", labels["trips"], labels["false_trips"], _ratio(labels["interception_ratio"]), _s(labels["median_delay_s"])),
        ("verdicts", alarms["count"], alarms["false"], _ratio(alarms["met_ratio"]), _s(alarms["median_delay_s"])),
    ]
    table = _table(("", "count", "false", "incidents met", "median delay"), rows, range(1, 5))
    return f"<h2>Against {labels['incidents']} labelled incidents</h2>{table}"


def _pool(trace: PoolTrace) -> str:
    curves = trace.curves
    if curves.used == 0:
        note = "An aggregated series, or no tick was closed: there is nothing to draw."
        return f"<h2>{escape(trace.pool)}</h2><p>{note}</p>{_findings(trace)}"
    start_s, stop_s = float(curves.end_s[0]) - trace.policy.tick_s, float(curves.end_s[curves.used - 1])
    spans = spans_of(trace.decisions, stop_s)
    slo = ", ".join(f"{sli} {s.objective * 100:g} % within {s.threshold:g} s" for sli, s in sorted(trace.policy.slo.items()))
    facts = f"{_when(start_s)} to {_when(stop_s)}; mode {trace.policy.mode}; {slo or 'no SLO'}"
    parts = [f"<h2>{escape(trace.pool)}</h2><p>{escape(facts)}</p>"]
    rows = []
    for node in sorted({d.subject for d in trace.decisions}):
        capped = [(d.t, d.reason) for d in trace.decisions if d.subject == node and d.capped]
        rows.append((node, spans.get(node, []), capped))
    if rows:
        parts.append(f"<h3>Breakers over time</h3>{_LANES_KEY}{lanes(rows[:60], start_s, stop_s)}")
    parts += [_decisions(trace), _findings(trace), _series(trace, spans, start_s, stop_s)]
    return f"<section>{''.join(parts)}</section>"


def spans_of(decisions: Iterable[Decision], stop_s: float) -> dict[str, list[Span]]:
    """When which subject's breaker was not closed."""
    out: dict[str, list[Span]] = {}
    state: dict[str, tuple[float, str]] = {}
    for d in decisions:
        if d.capped:
            continue
        if d.subject in state:
            since, was = state.pop(d.subject)
            out.setdefault(d.subject, []).append((since, d.t, was))
        if d.state != "CLOSED":
            state[d.subject] = d.t, d.state
    for subject, (since, was) in state.items():
        out.setdefault(subject, []).append((since, max(stop_s, since), was))
    return out


def _decisions(trace: PoolTrace) -> str:
    if not trace.decisions:
        return "<p>No decision.</p>"
    rows = [
        (_when(d.t), d.subject, d.state + (" (capped)" if d.capped else ""), d.reason, d.mode)
        for d in trace.decisions[:MOST_ROWS]
    ]  # fmt: skip
    return _folded("Decisions", len(trace.decisions), _table(("time", "subject", "state", "why", "mode"), rows))


def _findings(trace: PoolTrace) -> str:
    if not trace.findings:
        return "<p>No finding.</p>"
    rows = [(_when(f.t), f.finding, f.node or "the pool", f.cause or "") for f in trace.findings[:MOST_ROWS]]
    return _folded("Findings", len(trace.findings), _table(("time", "finding", "where", "cause"), rows))


def _folded(title: str, count: int, table: str) -> str:
    note = f", the first {MOST_ROWS} are shown" if count > MOST_ROWS else ""
    unfolded = " open" if count <= 20 else ""
    return f"<details{unfolded}><summary>{title}: {count}{note}</summary>{table}</details>"


def _series(trace: PoolTrace, spans: dict[str, list[Span]], start_s: float, stop_s: float) -> str:
    curves, used = trace.curves, trace.curves.used
    evidence, kl = curves.values["evidence"][:, :, :used], curves.values["kl"][:, :, :used]
    drawn = np.argwhere(np.isfinite(trace.chosen_s))
    if len(drawn) == 0:
        return "<p>No series has learned a baseline.</p>"
    order = sorted(map(tuple, drawn), key=lambda at: (not trace.degraded[at], -trace.score[at], trace.nodes[at[0]], at[1]))
    parts = [f"<h3>Series</h3>{_SERIES_KEY}"]
    for place, (i, s) in enumerate(order[:MOST_SERIES]):
        node, sli = trace.nodes[i], LATENCY_SLIS[s]
        nats = contributions_nats(trace.window[i, s], trace.base[i, s])
        word = '<b class="bad">degraded</b>' if trace.degraded[i, s] else "never degraded"
        peak = float(np.nanmax(evidence[i, s]))
        facts = f"evidence up to e^{peak:.1f} of e^{trace.threshold:.1f}; histograms at {_when(float(trace.chosen_s[i, s]))}, "
        facts += f"{int(trace.window[i, s].sum())} requests, KL {float(nats.sum()):.3f} nats"
        charts = score(
            curves.end_s[:used], evidence[i, s], trace.threshold, kl[i, s], spans.get(node, []), start_s, stop_s
        ) + histogram(trace.base[i, s], trace.window[i, s], nats, trace.edges_ratio[s])  # fmt: skip
        unfolded = " open" if place < OPENED else ""
        title = f"<summary><b>{escape(node)}</b> {sli}: {word}; {escape(facts)}</summary>"
        parts.append(f"<details class=series{unfolded}>{title}{charts}</details>")
    if len(order) > MOST_SERIES:
        parts.append(f"<p>{len(order) - MOST_SERIES} less suspicious series are not drawn.</p>")
    return "".join(parts)


def _when(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _s(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} s"


_LANES_KEY = (
    '<p class="key"><i class="swatch open"></i> open <i class="swatch half"></i> half-open <i class="swatch capped"></i> '
    "held back by a cap</p>"
)
_SERIES_KEY = (
    '<p class="key"><i class="swatch reference"></i> reference (baseline) <i class="swatch current"></i> current (window) '
    '<i class="swatch more"></i> adds to KL <i class="swatch less"></i> takes from it <i class="stroke score"></i> evidence '
    '<i class="stroke threshold"></i> threshold <i class="stroke kl"></i> KL, service</p>'
)
