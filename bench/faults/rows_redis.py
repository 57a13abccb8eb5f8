"""Faults of Redis and of the network between it and judge and hosts."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from bench.faults.case import Case, play
from bench.faults.hosts import FLEET, Host
from bench.faults.registry import fault
from bench.faults.site import Failed, Site, wait_for
from schemas.contract import Entry, decode_head
from schemas.errors import SinkBackpressure
from schemas.redis_keys import PoolKeys
from schemas.signing import load_signer
from sinks.redis_decisions import DecisionSink, Fenced, connect
from streams.embedded.redis_server import RedisServer

__all__: list[str] = []

GROUP = "redis"


def admin(site: Site, port: int | None = None) -> redis.Redis:
    """A client with all rights, past the proxies."""
    return redis.Redis(port=port or site.redis_port, socket_timeout=2.0)


@fault(
    GROUP,
    "Redis restarted, data lost",
    "SIGKILL, 2 s away, an empty one on the same port",
    "hosts right within 10 s",
    quick=True,
    alone=True,
)
def restarted(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    up = []

    def back() -> None:
        site.stack.redis_start()
        up.append(time.monotonic())

    play(site, [case], 8.0, [(4.5, site.stack.redis_stop), (6.5, back)])
    with admin(site) as there:
        keys = PoolKeys(FLEET, pool)
        wait_for(lambda: there.exists(keys.head), "the head in the empty Redis", 10)
    case.figures["head_after_s"] = round(time.monotonic() - up[0], 1)
    return case


@fault(GROUP, "FLUSHALL", "x3 while a breaker is open", "head again within 2 s; nothing opens, nothing closes early", alone=True)
def flushed(site: Site, pool: str) -> Case:
    case, healed = Case.plain(site, pool), []

    def flush() -> None:
        with admin(site) as there:
            there.flushall()
            healed.append(wait_for(lambda: there.exists(PoolKeys(FLEET, pool).head), "the head after FLUSHALL", 5))

    play(site, [case], 8.0, [(4.0, flush), (5.8, flush), (7.0, flush)])
    case.figures["head_after_s"] = round(max(healed), 2)
    if max(healed) > 2.0:
        raise Failed(f"the head came back after {max(healed):.1f} s")
    return case


def _old_owner(site: Site, port: int, pool: str, version: tuple[int, int, int]) -> str:
    """A judge that was replaced and does not know asserts an OPEN of its own; what the function answered."""

    async def once() -> str:
        sink = DecisionSink(connect(f"redis://127.0.0.1:{port}/0"), FLEET, signer=load_signer(site.settings.signing_key_file))  # type: ignore[arg-type]
        entry = Entry(scope="node", subject="gpu-007", state="OPEN", version=version, tx="zombie", opened_ms=sink.now_ms(),
                      not_after_ms=sink.now_ms() + 60_000)  # fmt: skip
        try:
            await sink.assert_state(pool, [entry], version=version, n_eligible=10, cap=1, mode="enforce")
            return "taken"
        except Fenced:
            return "fenced"
        except SinkBackpressure as exc:
            return str(exc)
        finally:
            await sink.close()

    return asyncio.run(once())


def _raise_epoch(site: Site) -> None:
    site.judge.kill()
    site.restart("judge").wait_ready(30)


def _epoch(site: Site, pool: str) -> int:
    with admin(site) as there:
        raw = there.get(PoolKeys(FLEET, pool).head)
    return decode_head(raw).epoch if raw else -1


@fault(GROUP, "two writers", "a replaced judge asserts an OPEN in the same Redis, 20 times", "fenced every time")
def two_writers(site: Site, pool: str) -> Case:
    case, answers = Case.plain(site, pool), list[str]()

    def write() -> None:
        wait_for(lambda: _epoch(site, pool) > 0, "a second epoch", 10)
        for i in range(20):
            answers.append(_old_owner(site, site.redis_port, pool, (1, 0, 90 + i)))

    play(site, [case], 10.0, [(1.0, lambda: _raise_epoch(site)), (6.0, write)])
    if set(answers) != {"fenced"}:
        raise Failed(f"the function answered {sorted(set(answers))}")
    case.figures["fenced"] = len(answers)
    return case


@fault(GROUP, "Redis split brain", "half of the hosts on a second Redis with a replaced writer, 4 s", "hosts keep the newest")
def split_brain(site: Site, pool: str) -> Case:
    case, answers = Case.plain(site, pool), list[str]()
    other = RedisServer(site.folder)
    other.start()
    half = site.hosts.all[::2]
    keys = PoolKeys(FLEET, pool)

    def split() -> None:
        wait_for(lambda: _epoch(site, pool) > 0, "a second epoch", 10)
        with admin(site) as here:
            newest = decode_head(here.get(keys.head)).version
        wait_for(lambda: all(_version(host, pool) >= newest for host in half), "hosts know the epoch", 5)
        for host in half:
            host.proxy.target = other.port
            host.proxy.cut()

    def write() -> None:
        for i in range(8):
            answers.append(_old_owner(site, other.port, pool, (1, 0, 90 + i)))
            time.sleep(0.3)

    def heal() -> None:
        for host in half:
            host.proxy.target = site.redis_port
            host.proxy.cut()

    try:
        play(site, [case], 10.0, [(1.0, lambda: _raise_epoch(site)), (4.0, split), (4.1, write), (8.5, heal)])
        heal()
    finally:
        other.stop()
    refused = sum(host.client.status().pools[pool].refused.get("rollback", 0) for host in half if host.client)
    case.figures |= {"written_there": answers.count("taken"), "refused_by_hosts": refused}
    if not refused:
        raise Failed("no host on the other side refused anything: the fault was not there")
    return case


def _version(host: Host, pool: str) -> tuple[int, int, int]:
    assert host.client is not None
    return host.client.status().pools[pool].version or (0, 0, 0)


class _Asker:
    """A request thread: asks `allow` without end and notes what the slowest answers took."""

    def __init__(self, host: Host, pool: str) -> None:
        self._stop = threading.Event()
        self.took_ns: list[int] = []
        assert host.client is not None
        self._client, self._pool = host.client, pool
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        clock, allow = time.perf_counter_ns, self._client.allow
        while not self._stop.is_set():
            for n in range(20):
                began = clock()
                allow(f"gpu-{n % 10:03d}", self._pool)
                self.took_ns.append(clock() - began)
            self._stop.wait(0.005)

    def end(self) -> dict[str, float]:
        self._stop.set()
        self._thread.join(5)
        return {
            "allow_p50_us": round(statistics.median(self.took_ns) / 1e3, 1), "allow_max_ms": round(max(self.took_ns) / 1e6, 1),
        }  # fmt: skip


def _with_asker(site: Site, case: Case, actions: list[tuple[float, Callable[[], Any]]], over_s: float) -> None:
    asker = _Asker(site.hosts.all[0], case.pool)
    play(site, [case], over_s, actions)
    figures = asker.end()
    case.figures |= figures
    if figures["allow_p50_us"] > 20 or figures["allow_max_ms"] > 150:
        raise Failed(f"requests waited: {figures}")


@fault(GROUP, "Redis slow", "answers +300 ms and 20 kB/s for judge and hosts, 4 s", "no request waits", alone=True)
def slow(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    proxies = [site.judge_redis, *(host.proxy for host in site.hosts)]

    def begin() -> None:
        for proxy in proxies:
            proxy.delay_s, proxy.bytes_per_s = 0.3, 20_000

    def end() -> None:
        for proxy in proxies:
            proxy.heal()

    _with_asker(site, case, [(2.5, begin), (6.5, end)], 8.0)
    return case


@fault(
    GROUP,
    "half-open connections to Redis",
    "nothing passes for 7 s, connections stay",
    "stale after 5 s and said so; no request waits",
    alone=True,
)
def half_open(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    sources: set[str] = set()
    proxies = [site.judge_redis, *(host.proxy for host in site.hosts)]

    def begin() -> None:
        for proxy in proxies:
            proxy.hole = True

    def end() -> None:
        sources.update(host.client.status().pools[pool].source for host in site.hosts if host.client)
        for proxy in proxies:
            proxy.heal()

    _with_asker(site, case, [(1.5, begin), (8.7, end)], 10.0)
    if sources != {"stale"}:
        raise Failed(f"after 7 s without Redis the hosts call their state {sorted(sources)}")
    return case


@fault(GROUP, "one host cut off", "its network drops everything for 8 s", "it knows; the others do not notice")
def partitioned(site: Site, pool: str) -> Case:
    case, found = Case.plain(site, pool), {}
    alone, other = site.hosts.all[3], site.hosts.all[4]

    def look() -> None:
        assert alone.client is not None
        assert other.client is not None
        found["alone"] = alone.client.status().pools[pool].source
        found["other"] = other.client.status().pools[pool].source
        alone.proxy.heal()

    def begin() -> None:
        alone.proxy.hole = True

    play(site, [case], 10.0, [(1.5, begin), (9.5, look)])
    if found != {"alone": "stale", "other": "fresh"}:
        raise Failed(f"the hosts call their state {found}")
    return case


@fault(GROUP, "judge cut off from Redis", "its connection is cut and refused for 4 s", "newest state at the next beat")
def judge_cut(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)

    def begin() -> None:
        site.judge_redis.refuse = True
        site.judge_redis.cut()

    play(site, [case], 8.0, [(4.0, begin), (8.0, site.judge_redis.heal)])
    return case


@fault(GROUP, "doorbell lost", "CLIENT KILL TYPE pubsub every 0.3 s", "found by polling")
def doorbell(site: Site, pool: str) -> Case:
    case, killed = Case.plain(site, pool), []

    def kill() -> None:
        with admin(site) as there:
            for _ in range(15):
                killed.append(int(there.execute_command("CLIENT", "KILL", "TYPE", "pubsub")))
                time.sleep(0.3)

    play(site, [case], 7.0, [(2.0, kill)])
    case.figures["connections_killed"] = sum(killed)
    if sum(killed) < 20:
        raise Failed(f"only {sum(killed)} subscriptions were killed")
    return case


@fault(GROUP, "stream trimmed", "XTRIM MAXLEN 0 every 0.5 s", "nobody depends on it")
def trimmed(site: Site, pool: str) -> Case:
    case, gone = Case.plain(site, pool), []

    def trim() -> None:
        with admin(site) as there:
            for _ in range(8):
                gone.append(int(there.xtrim(PoolKeys(FLEET, pool).log, maxlen=0, approximate=False)))
                time.sleep(0.5)

    play(site, [case], 7.0, [(3.0, trim)])
    case.figures["trimmed"] = sum(gone)
    return case


@fault(GROUP, "Redis out of memory", "maxmemory 1 byte, noeviction, 4 s", "written when there is room again")
def out_of_memory(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)

    def limit(n_bytes: int) -> None:
        with admin(site) as there:
            there.config_set("maxmemory-policy", "noeviction")
            there.config_set("maxmemory", n_bytes)

    play(site, [case], 8.0, [(3.5, lambda: limit(1)), (7.5, lambda: limit(0))])
    if "OOM" not in site.judge.said and "memory" not in site.judge.said:
        raise Failed("the judge never met the limit: the fault was not there")
    return case
