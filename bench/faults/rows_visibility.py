"""How soon 50 hosts know of a decision, as rows; `python -m bench.faults.visibility` measures more of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.faults.case import Action, Case, play
from bench.faults.closing import close
from bench.faults.host_processes import HostProcesses
from bench.faults.registry import fault
from bench.faults.site import Failed, Site
from bench.faults.visibility import delays

__all__: list[str] = []

GROUP = "fifty hosts"
N_HOSTS = 50
_OVER_S = 12.0


def _played(site: Site, pool: str, faults: Sequence[Action] = ()) -> Case:
    with HostProcesses(site, [pool], N_HOSTS) as hosts:
        case = Case.plain(site, pool)
        play(site, [case], _OVER_S, faults)
        close(site, [case])
        case.host_logs = hosts.stop()
    return case


def _seen(site: Site, case: Case, bars: dict[float, float]) -> None:
    found = delays(site, {case.pool}, case.host_logs)
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
    return _played(site, pool)


@fault(
    GROUP,
    "fifty hosts through a restart",
    "Redis SIGKILLed before the first decision, 2 s away, back empty",
    "all within 10 s of the append",
    alone=True,
    check=_through_restart,
)
def restarted(site: Site, pool: str) -> Case:
    down_at = _OVER_S * 160 / 240  # the first breaker opens at 165 s of the story
    return _played(site, pool, [(down_at, site.stack.redis_stop), (down_at + 2.0, site.stack.redis_start)])
