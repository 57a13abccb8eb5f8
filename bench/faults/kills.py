"""Judge, archive and framer killed in turn at random points under load; afterwards the archive is compared row for row.

`python -m bench.faults.kills --kills 200`. Stories are played one round after the other, three pools at a time; after each
round everything comes to rest and the closing checks recompute windows, findings and decisions from the frames that are in the
log, and compare them with ClickHouse.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from bench.faults.case import Case, play
from bench.faults.closing import close
from bench.faults.site import Failed, Site

__all__ = ["ROLES", "soak"]

ROLES = ("judge", "archive", "framer")
_POOLS_A_ROUND = 3
_ROUND_S = 30.0


def soak(kills: int, seed: int = 1, *, real_kafka: bool = False, pause_s: tuple[float, float] = (0.8, 3.2)) -> dict[str, int]:
    """Kill so often; totals of what was compared.

    Args:
        kills: How many.
        seed: Of the moments.
        real_kafka: An Apache Kafka instead of the mock cluster.
        pause_s: Shortest and longest time between two kills.

    Raises:
        Failed: Something was lost, doubled, or differs.
    """
    chance, done = random.Random(seed), 0
    rounds = 1 + int(kills * (pause_s[0] + pause_s[1]) / 2 / (_ROUND_S - 2))
    total = {"kills": 0, "rounds": 0, "rows": 0, "decisions": 0, "written_twice": 0, "requests": 0}
    pools = [[f"kills/{r}/{i}" for i in range(_POOLS_A_ROUND)] for r in range(rounds + 5)]
    with Site([pool for some in pools for pool in some], n_hosts=2, real_kafka=real_kafka) as site:
        while done < kills:
            some = pools[total["rounds"]]
            cases = [Case.plain(site, pool, seed=100 * total["rounds"] + i) for i, pool in enumerate(some)]
            actions, at_s = [], chance.uniform(*pause_s)
            while at_s < _ROUND_S - 2 and done < kills:
                actions.append((at_s, lambda role=ROLES[done % 3]: _kill(site, role)))
                done += 1
                at_s += chance.uniform(*pause_s)
            play(site, cases, _ROUND_S, actions)
            figures = close(site, cases)
            total["kills"], total["rounds"] = done, total["rounds"] + 1
            total["requests"] += sum(len(case.messages) for case in cases)
            for name in ("rows", "decisions", "written_twice"):
                total[name] += sum(f[name] for f in figures.values())
            settled = max(f["settled_s"] for f in figures.values())
            print(f"round {total['rounds']}: {done} kills, {total['rows']} rows equal, at rest after {settled:g} s", flush=True)
    return total


def _kill(site: Site, role: str) -> None:
    getattr(site, role).kill()
    site.restart(role)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.kills")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="a real Apache Kafka instead of the mock cluster")
    chosen = parser.parse_args()
    began = time.monotonic()
    try:
        total = soak(chosen.kills, chosen.seed, real_kafka=chosen.kafka)
    except Failed as exc:
        print(f"FAILS after {time.monotonic() - began:.0f} s: {exc}")
        return 1
    print(f"holds: {total}, {time.monotonic() - began:.0f} s, seed {chosen.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
