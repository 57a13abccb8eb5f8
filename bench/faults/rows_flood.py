"""A cardinality bomb: what memory it takes."""

from __future__ import annotations

from bench.faults.case import Case, play
from bench.faults.registry import fault
from bench.faults.site import REQUESTS, Failed, Site
from bench.faults.workload import request

__all__: list[str] = []

GROUP = "flood"
LIMIT_MIB = 512


@fault(
    GROUP,
    "cardinality bomb",
    "100,000 requests, each with a node, tenant, adapter and session of its own, into one pool",
    "RSS of each process below 512 MiB; decisions of the other pool as without",
    alone=True,
)
def bomb(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    flood = Case(pool + "-flood")
    for i in range(100_000):
        raw = request(
            flood.pool, f"made-up-{i}", 60 + 170 * i / 100_000, f"f{i}", 0.3, tenant=f"t{i}", adapter=f"a{i}", session=f"s{i}"
        )
        flood.messages.append((60 + 170 * i / 100_000, REQUESTS, raw))
    play(site, [case, flood], 20.0)
    peaks = {role: getattr(site, role).peak_rss_mib() for role in ("judge", "framer", "archive")}
    case.figures |= {f"{role}_mib": round(mib) for role, mib in peaks.items()}
    if max(peaks.values()) > LIMIT_MIB:
        raise Failed(f"resident memory {peaks}")
    return case
