"""The client's state as Prometheus text (format 0.0.4). Written out, so that a serving host installs nothing for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slodrift_client.answers import Status

__all__ = ["exposition"]


def exposition(status: Status, answers: Mapping[str, int]) -> str:
    """Text of a scrape.

    Args:
        status: Of the client.
        answers: Checks answered so far, by outcome.
    """
    lines = _family(
        "slodrift_client_checks_total", "counter", "Checks answered", [({"answer": k}, v) for k, v in answers.items()]
    )
    lines += _family("slodrift_client_polls_total", "counter", "Looks at Redis", [({}, status.polls)])
    lines += _family("slodrift_client_errors_total", "counter", "Looks at Redis that failed", [({}, status.errors)])
    lines += _family("slodrift_client_degraded", "gauge", "1 while some pool is not known well", [({}, status.degraded)])
    pools = list(status.pools.values())
    ages = [({"pool": p.pool}, p.age_s) for p in pools]
    lines += _family("slodrift_client_age_seconds", "gauge", "Since the pool's heartbeat last advanced", ages)
    blocked = [({"pool": p.pool}, p.n_blocked) for p in pools]
    lines += _family("slodrift_client_blocked", "gauge", "Subjects that are refused", blocked)
    lines += _family("slodrift_client_panic", "gauge", "1 while nothing is obeyed", [({"pool": p.pool}, p.panic) for p in pools])
    denied = [({"pool": p.pool}, p.retries_denied) for p in pools]
    lines += _family(
        "slodrift_client_retries_denied_total", "counter", "Refusals that named no fallback for want of budget", denied
    )
    refused = [({"pool": p.pool, "reason": reason}, n) for p in pools for reason, n in sorted(p.refused.items())]
    lines += _family("slodrift_client_refused_states_total", "counter", "Heads and snapshots not believed", refused)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, what: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    lines = [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
        number = "+Inf" if value == float("inf") else f"{float(value):g}" if isinstance(value, float) else str(int(value))
        lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return lines


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
