"""A decision in four lines: what was decided, why, on which evidence, and for how long.

Decisions come from ClickHouse, or from the NDJSON of a replay; the text is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from schemas.errors import SourceError
from schemas.results import Decision
from sinks.clickhouse import ClickHouse

__all__ = ["decision_from_clickhouse", "decision_from_lines", "explain", "number"]

_WHAT = {
    "OPEN": "no request to it",
    "HALF_OPEN": "only probes to it",
    "CLOSED": "requests as usual",
    "FORCED_OPEN": "no request to it, by an operator",
    "DISABLED": "the breaker is switched off by an operator",
}
_AFTERWARDS = {"OPEN": "then probes decide", "HALF_OPEN": "then it opens again unless the probes succeed"}
_MODE = {"shadow": "logged only, hosts are not told", "advise": "hosts are told, they need not obey", "enforce": "hosts obey"}


def explain(decision: Decision) -> list[str]:
    """Four lines of text."""
    version = ".".join(map(str, decision.version))
    held_back = " (held back by the cap: nothing was taken away)" if decision.capped else ""
    first = (
        f"{_time(decision.t)} {decision.state} {decision.scope} {decision.subject} of {decision.pool}: "
        f"{_what(decision)}{held_back}"
    )
    evidence = "; ".join(_evidence(decision.evidence))
    origin = f"policy {decision.policy_version or 'unknown'}, tx {decision.tx}"
    until = "until another decision"
    if decision.not_after is not None:
        until = f"until {_time(decision.not_after)} at the latest, {_AFTERWARDS.get(decision.state, 'then it ends')}"
    return [
        first,
        f"  because   {decision.reason or 'no reason was recorded'}",
        f"  evidence  {evidence or 'none was recorded'}",
        f"  holds     {until}; {decision.mode} ({_MODE[decision.mode]}); version {version}, {origin}",
    ]


def _what(decision: Decision) -> str:
    """What becomes of requests to the subject."""
    if decision.state in ("CLOSED", "DISABLED") or decision.action not in ("shed", "fallback", "degrade"):
        return _WHAT[decision.state]
    by = ", by an operator" if decision.state == "FORCED_OPEN" else ""
    probes = ", and probes" if decision.state == "HALF_OPEN" else ""
    if decision.action == "degrade":
        return f"requests as usual under the profile {decision.evidence.get('profile') or 'that it names'}{by}"
    others = f", the others to {decision.evidence['fallback']}" if decision.evidence.get("fallback") else ""
    return f"{100 * decision.admit_ratio:.3g} % of its requests{probes} go{others}{by}"


def number(name: str, value: Any) -> str:
    """A value for people, with the unit that its name ends in."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_ratio"):
        return f"{100 * value:.3g} %"
    for suffix, unit in (("_per_s", "/s"), ("_nats", " nats"), ("_bytes", " bytes"), ("_tokens", " tokens"), ("_s", " s")):
        if name.endswith(suffix):
            return f"{value:.4g}{unit}"
    return f"{value:.6g}"


def _evidence(evidence: dict[str, Any]) -> list[str]:
    """Parts of the evidence: plain values together, then the latency series with the strongest evidence."""
    plain = [f"{name} {number(name, value)}" for name, value in sorted(evidence.items()) if not isinstance(value, dict)]
    parts = [", ".join(plain)] if plain else []
    series = sorted(evidence.get("series", {}).items(), key=lambda entry: (-_margin(entry[1]), entry[0]))
    if series:
        more = f" (and {len(series) - 1} more series, --json shows all)" if len(series) > 1 else ""
        parts.append(_series(*series[0]) + more)
    return parts


def _margin(values: dict[str, Any]) -> float:
    evidence, threshold = values.get("log_evidence"), values.get("log_threshold")
    return -math.inf if evidence is None or threshold is None else float(evidence - threshold)


def _series(name: str, values: dict[str, Any]) -> str:
    known = {key: value for key, value in values.items() if value is not None}
    parts = []
    if "slowdown" in known:
        parts.append(f"{known['slowdown']:.2f} times its baseline")
    if "kl_service_nats" in known:
        parts.append(f"KL {known['kl_service_nats']:.2f} nats")
    if "log_evidence" in known and "log_threshold" in known:
        parts.append(f"evidence e^{known['log_evidence']:.1f} where e^{known['log_threshold']:.1f} is needed")
    limits = {"P99.9": "p999_s", "threshold": "threshold_s", "SLO": "slo_s"}
    parts += [f"{word} {known[key]:.4g} s" for word, key in limits.items() if key in known]
    return f"{name} {', '.join(parts)}"


def _time(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-4] + "Z"


def decision_from_lines(lines: Iterable[bytes], tx: str | None, origin: str) -> Decision:
    """The decision whose tx begins with `tx`, or the last one, of the output of a replay.

    Raises:
        SourceError: A line is not JSON, or there is no such decision.
    """
    found: Decision | None = None
    for count, line in enumerate(lines, 1):
        if b'"decision"' not in line:
            continue
        try:
            document = msgspec.json.decode(line)
            if not isinstance(document, dict) or document.get("kind") != "decision":
                continue
            decision = msgspec.convert(document, Decision)
        except msgspec.MsgspecError as exc:
            raise SourceError(f"{origin}:{count}: not a line of slodrift replay --json: {exc}") from None
        if tx is None or decision.tx.startswith(tx):
            found = decision
    if found is None:
        raise SourceError(f"{origin}: {_none(tx)}")
    return found


def decision_from_clickhouse(clickhouse: ClickHouse, tx: str | None, pool: str | None = None) -> Decision:
    """The decision whose tx begins with `tx`, or the last one (of `pool` and its cells).

    Raises:
        SinkError: ClickHouse does not answer.
        SourceError: There is no such decision.
    """
    rows = clickhouse.query(
        """
        SELECT toUnixTimestamp64Milli(t) / 1000 AS t_s, pool, scope, subject, state, gen, epoch, seq, tx, action, admit_ratio,
               reason, mode, capped, latched, toUnixTimestamp64Milli(not_after) / 1000 AS not_after_s, policy_version,
               toUnixTimestamp64Milli(window_end) / 1000 AS window_end_s, evidence
        FROM decision_history
        WHERE NOT void AND startsWith(tx, {tx:String})
              AND ({pool:String} = '' OR pool = {pool:String} OR startsWith(pool, concat({pool:String}, '~')))
        ORDER BY t DESC, seq DESC LIMIT 1
        """,
        {"tx": tx or "", "pool": pool or ""},
    )
    if not rows:
        raise SourceError(f"ClickHouse: {_none(tx)}")
    row = rows[0]
    return Decision(
        t=row["t_s"], pool=row["pool"], scope=row["scope"], subject=row["subject"], state=row["state"],
        version=(row["gen"], row["epoch"], row["seq"]), tx=row["tx"], action=row["action"], admit_ratio=row["admit_ratio"],
        reason=row["reason"], mode=row["mode"], capped=row["capped"], latched=row["latched"], not_after=row["not_after_s"],
        policy_version=row["policy_version"], window_end=row["window_end_s"], evidence=json.loads(row["evidence"] or "{}"),
    )  # fmt: skip


def _none(tx: str | None) -> str:
    return "there is no decision yet" if tx is None else f"there is no decision whose tx begins with {tx!r}"
