"""How soon 50 hosts know of a decision, as rows; `python -m bench.faults.visibility` measures more of it."""

from __future__ import annotations

import numpy as np

from bench.faults.case import Case, play
from bench.faults.registry import fault
from bench.faults.site import Failed, Site
from bench.faults.visibility import delays

__all__ = ["N_HOSTS"]

GROUP = "fifty hosts"
N_HOSTS = 50
_OVER_S = 12.0


def _seen(site: Site, case: Case, bars: dict[float, float]) -> None:
    found = delays(site, {case.pool}, site.hosts.all)
    if found.decisions != 3 or found.hosts != N_HOSTS:
        raise Failed(f"{found.decisions} decisions on {found.hosts} hosts")
    p99_s, most_s = np.quantile(found.seconds, [0.99, 1.0])
    case.figures |= {"pairs": found.seconds.size, "seen_p99_s": round(float(p99_s), 2), "seen_max_s": round(float(most_s), 2)}
    for limit_s, share in bars.items():
        if found.within(limit_s) < share:
            raise Failed(f"{found.within(limit_s):.1%} seen within {limit_s:g} s: {case.figures}")


def _soon(site: Site, case: Case) -> None:
    _seen(site, case, {2.0: 0.99, 5.0: 1.0})


def _through_restart(site: Site, case: Case) -> None:
    _seen(site, case, {10.0: 1.0})


@fault(
    GROUP,
    "decisions on fifty hosts",
    "nothing but 50 hosts on one machine",
    "99 % within 2 s of the append, all within 5 s",
    quick=True,
    alone=True,
    check=_soon,
)
def undisturbed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], _OVER_S)
    return case


@fault(
    GROUP,
    "fifty hosts through a restart",
    "Redis SIGKILLed before the first decision, 2 s away, back empty",
    "all within 10 s of the append",
    alone=True,
    check=_through_restart,
)
def restarted(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    down_at = _OVER_S * 160 / 240  # the first breaker opens at 165 s of the story
    play(site, [case], _OVER_S, [(down_at, site.stack.redis_stop), (down_at + 2.0, site.stack.redis_start)])
    return case
