"""Faults of our own processes: killed, ended, stopped, replaced while they are paused, joined and left in a storm."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.faults.case import Case, play
from bench.faults.processes import Child
from bench.faults.registry import fault
from bench.faults.site import N_PARTITIONS, REQUESTS, Failed, Site, wait_for
from bench.faults.workload import request
from schemas.results import Decision, encode_line
from schemas.topics import DECISIONS, partition_of

__all__: list[str] = []

GROUP, THINNED = "workers", "thinned"
"""Every window a row in ClickHouse; or, as the archive does by default, quiet ones once a minute."""


def _kill(site: Site, role: str) -> None:
    getattr(site, role).kill()
    site.restart(role)


@fault(
    THINNED,
    "judge killed, quiet windows thinned",
    "SIGKILL x3 in 6 s, started anew",
    "row for row what the archive keeps of the topic",
)
@fault(GROUP, "judge killed", "SIGKILL x3 in 6 s, started anew", "decisions as without", quick=True)
def judge_killed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 8.0, [(at, lambda: _kill(site, "judge")) for at in (1.5, 4.0, 6.5)])
    return case


@fault(GROUP, "judge ended", "SIGTERM x2", "code 0, within 10 s each", alone=True)
def judge_ended(site: Site, pool: str) -> Case:
    case, took = Case.plain(site, pool), []

    def end() -> None:
        site.judge.wait_ready(30)
        code, took_s = site.judge.terminate()
        took.append(took_s)
        if code != 0:
            raise Failed(f"the judge ended with code {code}: {site.judge.said[-500:]}")
        site.restart("judge")

    play(site, [case], 8.0, [(2.0, end), (5.5, end)])
    site.judge.wait_ready(30)
    case.figures["exit_s"] = round(max(took), 1)
    return case


@fault(GROUP, "judge paused", "SIGSTOP 2 s, below its session", "no other owner needed")
def judge_paused(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 6.0, [(2.5, site.judge.pause), (4.5, site.judge.resume)])
    return case


@fault(
    GROUP,
    "zombie judge",
    "SIGSTOP beyond its session, a second judge takes over; then SIGCONT",
    "new owner within 15 s",
    alone=True,
)
def zombie(site: Site, pool: str) -> Case:
    case, taken = Case.plain(site, pool), {}

    def pause() -> None:
        site.judge.pause()
        taken["other"], taken["at"] = site.start("judge"), time.monotonic()

    def wait() -> None:
        taken["other"].wait_ready(15)
        case.figures["takeover_s"] = round(time.monotonic() - taken["at"], 1)
        site.judge.resume()

    play(site, [case], 12.0, [(3.0, pause), (4.0, wait)])
    site.judge.kill()
    site.judge = taken["other"]
    return case


@fault(GROUP, "replaced judge still appends", "an OPEN of a lower epoch, behind the new owner's claim", "void: no host sees it")
def void_append(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 5.0, [(1.0, lambda: _kill(site, "judge"))])
    site.judge.wait_ready(30)
    partition = partition_of(pool, N_PARTITIONS)
    late = Decision(
        t=1_796_000_239.0, pool=pool, scope="node", subject="gpu-007", state="OPEN", version=(1, 0, 99), tx="zombie",
        mode="enforce", not_after=1_796_000_299.0,
    )  # fmt: skip
    site.produce(DECISIONS.name, encode_line(late), partition=partition)
    site.producer.flush(10)
    _kill(site, "judge")  # whoever folds the log anew passes over it, too
    site.judge.wait_ready(30)
    _, void = site.tail.decisions([pool])
    wait_for(lambda: site.tail.decisions([pool])[1] > 0, "the void decision in the log", 5)
    case.figures["void"] = max(void, 1)
    return case


@fault(THINNED, "archive killed, quiet windows thinned", "SIGKILL x5 in 8 s", "row for row what the archive keeps of the topic")
@fault(GROUP, "archive killed", "SIGKILL x5 in 8 s", "row for row as computed from the frames", quick=True)
def archive_killed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 10.0, [(at, lambda: _kill(site, "archive")) for at in (1.0, 3.0, 5.2, 7.1, 9.3)])
    return case


@fault(THINNED, "framer killed, quiet windows thinned", "SIGKILL x5 in 8 s", "row for row what the archive keeps of the topic")
@fault(GROUP, "framer killed", "SIGKILL x5 in 8 s", "decisions as without")
def framer_killed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 10.0, [(at, lambda: _kill(site, "framer")) for at in (1.0, 3.0, 5.2, 7.1, 9.3)])
    return case


@fault(GROUP, "rebalance storm", "a second judge comes and goes x4", "decisions as without")
def storm(site: Site, pool: str) -> Case:
    case, others = Case.plain(site, pool), list[Child]()

    def leave() -> None:
        others[-1].terminate(12)

    actions = []
    for i in range(4):
        actions += [(1.0 + 3.5 * i, lambda: others.append(site.start("judge"))), (3.5 + 3.5 * i, leave)]
    play(site, [case], 15.0, actions)
    return case


@fault(
    THINNED,
    "everything restarted at once, quiet windows thinned",
    "SIGKILL of judge, archive, framer, Redis and all hosts",
    "row for row what the archive keeps of the topic",
)
@fault(GROUP, "everything restarted at once", "SIGKILL of judge, archive, framer, Redis and all hosts", "converges")
def mass_restart(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)

    def everything() -> None:
        for child in (site.judge, site.archive, site.framer):
            child.kill()
        site.stack.redis_stop()
        for host in site.hosts:
            host.stop()
        site.stack.redis_start()
        for role in ("judge", "archive", "framer"):
            site.restart(role)
        for host in site.hosts:
            host.start()

    play(site, [case], 8.0, [(5.8, everything)])
    return case


_POISONED = """
import streams.judge.pool_judge as judged
from streams.cli import main
plain = judged.PoolJudge.requests
def requests(self, batch):
    if any(name.startswith('venom') for name in batch.nodes):
        raise ZeroDivisionError('this row makes no sense')
    plain(self, batch)
judged.PoolJudge.requests = requests
main()
"""


@fault(GROUP, "poison frames", "3 frames at which the judge raises", "3 dead letters, the partition goes on")
def poison(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    case.without = b"venom-"
    case.messages += [
        (t, REQUESTS, request(pool, f"venom-{i}", t, f"{pool}-p{i}", 0.3)) for i, t in enumerate((60.0, 120.0, 121.0))
    ]
    site.judge.kill()
    site.judge = site.start("judge", command=[sys.executable, "-c", _POISONED, "worker", "judge"])
    site.judge.wait_ready(30)
    play(site, [case], 6.0)
    case.expect_dead = 3
    case.after = lambda: _kill(site, "judge")
    return case


@fault(GROUP, "policy file bad", "a judge started with a blank, a broken, an unknown and a missing file", "exit 2, no traceback")
def bad_policy(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    broken = {"blank": "", "broken": "pools: [}", "unknown": "apiVersion: slodrift/v9\nkind: Poem\n", "missing": None}

    def start_all() -> None:
        for name, text in broken.items():
            path = site.folder / f"{name}.yaml"
            if text is not None:
                path.write_text(text)
            child = site.start("judge", SLODRIFT_POLICY_FILE=str(path))
            try:
                code = child.wait(60)
            except subprocess.TimeoutExpired:
                raise Failed(f"the judge runs with a {name} policy file") from None
            if code != 2 or "Traceback" in child.said:
                raise Failed(f"{name} policy file: code {code}, it said {child.said[-500:]}")

    play(site, [case], 8.0, [(1.0, start_all)])
    return case
