"""Who may open a breaker: forged, rolled back and mixed states in Redis, damaged files, probes that hang."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.faults.case import Case, play
from bench.faults.hosts import FLEET, Host
from bench.faults.registry import fault
from bench.faults.rows_redis import GROUP, admin
from bench.faults.site import Failed, Site, wait_for
from bench.faults.workload import NODES, SLOW
from schemas.contract import Entry, build, encode
from schemas.redis_keys import PoolKeys
from schemas.signing import Signer

__all__: list[str] = []


def _write(site: Site, pool: str, head: bytes, snapshot: bytes, times: int = 10) -> None:
    """What an attacker with all rights in Redis writes, again and again between the judge's beats; and rings the bell."""
    keys = PoolKeys(FLEET, pool)
    with admin(site) as there:
        for _ in range(times):
            with there.pipeline() as both:
                both.set(keys.head, head, px=60_000).set(keys.snap, snapshot).publish(keys.doorbell, "9").execute()
            time.sleep(0.2)


def _forged(pool: str, version: tuple[int, int, int] = (1, 10_000, 1)) -> tuple[bytes, bytes]:
    now_ms = time.time_ns() // 1_000_000
    entry = Entry(scope="node", subject="gpu-008", state="OPEN", version=version, tx="forged", opened_ms=now_ms,
                  not_after_ms=now_ms + 60_000)  # fmt: skip
    head, snapshot = build(fleet=FLEET, pool=pool, version=version, entries=[entry], n_eligible=10, cap=1, mode="enforce",
                           issued_ms=now_ms, hb=5)  # fmt: skip
    return encode(head), snapshot


def _refusals(site: Site, pool: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for host in site.hosts:
        assert host.client is not None
        for reason, n in host.client.status().pools[pool].refused.items():
            found[reason] = found.get(reason, 0) + n
    return found


def _must_refuse(site: Site, case: Case, *reasons: str) -> None:
    refused = _refusals(site, case.pool)
    case.figures["refused"] = " ".join(f"{k} {v}" for k, v in sorted(refused.items()))
    for reason in reasons:
        if refused.get(reason, 0) < len(site.hosts.all):
            raise Failed(f"not every host refused it as {reason}: {refused}")


@fault(
    GROUP,
    "forged head, unsigned",
    "a Redis admin writes a newer head that opens a node, 10 times in 2 s",
    "refused by every host",
    quick=True,
)
def forged(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 8.0, [(4.8, lambda: _write(site, pool, *_forged(pool)))])
    _must_refuse(site, case, "unsigned")
    return case


@fault(GROUP, "forged head, foreign key", "the same, signed with a key that nobody trusts", "refused by every host")
def foreign_key(site: Site, pool: str) -> Case:
    case, signer = Case.plain(site, pool), Signer(Ed25519PrivateKey.generate())
    head, snapshot = _forged(pool)
    play(site, [case], 8.0, [(4.8, lambda: _write(site, pool, signer.sign("slodrift-head-v1", head), snapshot))])
    _must_refuse(site, case, "unknown_key")
    return case


@fault(
    GROUP,
    "forged head, signature of another",
    "a genuine head with its numbers changed, its signature kept",
    "refused by every host",
)
def changed_head(site: Site, pool: str) -> Case:
    case, keys = Case.plain(site, pool), PoolKeys(FLEET, pool)

    def attack() -> None:
        with admin(site) as there:
            head, snapshot = there.get(keys.head), there.get(keys.snap)
        _write(site, pool, head.replace(b'"hb":', b'"hb":99', 1), snapshot)

    play(site, [case], 8.0, [(4.8, attack)])
    _must_refuse(site, case, "bad_signature")
    return case


@fault(
    GROUP,
    "head rolled back",
    "yesterday's genuine head and snapshot (OPEN) written over the newest",
    "refused by every host",
)
def rolled_back(site: Site, pool: str) -> Case:
    case, keys, old = Case.plain(site, pool), PoolKeys(FLEET, pool), list[Any]()

    def keep() -> None:
        with admin(site) as there:
            old.extend(there.mget(keys.head, keys.snap))

    play(site, [case], 9.0, [(3.0, keep), (8.0, lambda: _write(site, pool, old[0], old[1]))])
    _must_refuse(site, case, "rollback")
    return case


@fault(
    GROUP, "forged snapshot", "the list behind a genuine head replaced by one that opens three nodes", "refused, by its digest"
)
def forged_snapshot(site: Site, pool: str) -> Case:
    case, keys = Case.plain(site, pool), PoolKeys(FLEET, pool)

    def attack() -> None:
        with admin(site) as there:
            for _ in range(60):
                raw = there.get(keys.snap)
                if raw is not None:
                    body = json.loads(raw)
                    names = [f"gpu-{i:03d}" for i in range(3)]
                    body["entries"] = [{"scope": "node", "subject": n, "state": "OPEN", "version": [1, 9, i], "tx": "f",
                                        "opened_ms": 1,
                                        "not_after_ms": 1 << 42} for i, n in enumerate(names)]  # fmt: skip
                    there.set(keys.snap, json.dumps(body).encode())
                time.sleep(0.05)

    play(site, [case], 9.0, [(4.8, attack)])
    with admin(site) as there:
        wait_for(lambda: _digest_fits(there, keys), "the true snapshot", 5)
    return case


def _digest_fits(there: Any, keys: PoolKeys) -> bool:
    head, snapshot = there.mget(keys.head, keys.snap)
    return bool(head and snapshot) and json.loads(head)["snap_sha256"] == hashlib.sha256(snapshot).hexdigest()


@fault(GROUP, "state of another pool", "another pool's genuine head and snapshot under this pool's keys", "refused by every host")
def other_pool(site: Site, pool: str) -> Case:
    case, donor = Case.plain(site, pool), Case.plain(site, "redis/donor")
    source = PoolKeys(FLEET, donor.pool)

    def attack() -> None:
        with admin(site) as there:
            head, snapshot = there.mget(source.head, source.snap)
        _write(site, pool, head, snapshot)

    play(site, [case, donor], 8.0, [(4.8, attack)])
    _must_refuse(site, case, "foreign")
    return case


def _file(host: Host, pool: str) -> Any:
    name = hashlib.sha256(f"{FLEET}\0{pool}".encode()).hexdigest()[:32]
    return host.folder / f"{name}.slodrift"


@fault(
    GROUP,
    "last-known-good file damaged",
    "cut, bit flipped, emptied; the host starts without Redis",
    "not believed; nothing open",
)
def damaged_file(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 6.0)
    victims = site.hosts.all[:3]
    wait_for(lambda: all(_file(host, pool).exists() and host.believes(pool) for host in victims), "files with an open node", 10)
    for host, damage in zip(
        victims, (lambda raw: raw[:-40], lambda raw: raw[:90] + bytes([raw[90] ^ 1]) + raw[91:], lambda raw: b""), strict=True
    ):
        host.stop()
        host.proxy.refuse = True
        host.proxy.cut()
        path = _file(host, pool)
        path.write_bytes(damage(path.read_bytes()))
        host.start()
        assert host.client is not None
        status = host.client.status()
        if status.file_errors < 1 or not host.client.allow(SLOW, pool) or status.pools[pool].source != "default":
            raise Failed(f"{host.name} believes a damaged file: {status.pools[pool]}")
        host.proxy.heal()
    return case


@fault(GROUP, "host started without Redis", "a good last-known-good file, Redis refused", "goes by the file, and says so")
def good_file(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 6.0)
    host = site.hosts.all[5]
    wait_for(lambda: _file(host, pool).exists() and host.believes(pool), "a file with an open node", 10)
    host.stop()
    host.proxy.refuse = True
    host.proxy.cut()
    host.start()
    assert host.client is not None
    if host.client.status().pools[pool].source != "lkg" or not host.believes(pool):
        raise Failed(f"the file is not believed: {host.client.status().pools[pool]}")
    case.figures["source"] = "lkg"
    host.proxy.heal()
    return case


@fault(
    GROUP,
    "probes hang",
    "half-open node: every host takes its lease and never gives it back",
    "at most 3 at once; back after 2 s",
)
def hanging_probe(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    case.messages = [
        m for m in case.messages if m[0] < 213.0
    ]  # the story ends while the node is half-open (decided at 200, known at 210)
    case.valid_s = [t for t in case.valid_s if t < 213.0]
    case.control = [event for event in case.control or [] if event[0] < 213.0]
    play(site, [case], 6.0)
    hosts = [host for host in site.hosts if host.client]

    def half_open() -> bool:
        return all(h.client.decide(SLOW, pool).state == "HALF_OPEN" for h in hosts)

    wait_for(half_open, "the node half-open on all hosts", 20)
    leases = [host.client.probe(SLOW, pool) for host in hosts]
    granted = sum(map(bool, leases))
    more = sum(bool(host.client.probe(SLOW, pool)) for host in hosts)
    if not 1 <= granted <= 3 or more:
        raise Failed(f"{granted} hosts got a lease, and {more} a second one")
    again: list[bool] = []

    def slot_is_back() -> bool:
        again.append(any(host.client.probe(SLOW, pool) for host in hosts))
        return again[-1]

    back_s = wait_for(slot_is_back, "a slot again after the probe timeout of 2 s", 6)
    case.figures |= {"granted": granted, "slot_back_s": round(back_s, 1)}
    if back_s < 1.0:
        raise Failed(f"a slot was back after {back_s:.1f} s although its probe had not returned")
    return case


@fault(GROUP, "wall clock of hosts jumps", "+2 h, -2 h, and every 0.3 s by half a minute", "nothing ends early, nothing opens")
def host_clock(site: Site, pool: str) -> Case:
    case, jump = Case.plain(site, pool), [0.0]
    victims = site.hosts.all[6:8]
    for host in victims:
        host.stop()
        host.start(wall=lambda: time.time() + jump[0])

    def strobe() -> None:
        pause = threading.Event()
        for i, by in enumerate((7200.0, -7200.0, *(30.0, -30.0) * 5)):
            jump[0] = by
            pause.wait(0.8 if i < 2 else 0.3)
        jump[0] = 0.0

    play(site, [case], 8.0, [(3.5, strobe)])
    return case


assert NODES == 10  # the caps in the expectations above
