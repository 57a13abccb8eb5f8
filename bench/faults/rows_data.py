"""Faults of the input: twice, out of order, late, from the future, corrupt, impossible, too large, silent, flapping, forged.

These rows make messages only; the group is played at once, each in a pool of its own.
"""

from __future__ import annotations

import gzip
import json
import random

import msgspec

from bench.faults.case import Case
from bench.faults.registry import fault
from bench.faults.site import REQUESTS, Failed, Site
from bench.faults.workload import LENGTH_S, SLOW, T0_S, request, story
from schemas.topics import FRAMES, TELEMETRY
from streams.framer_cut import cut_frames
from streams.framing import EventFramer

__all__: list[str] = []

GROUP, MORE = "data", "more data"
"""Two, since the mock cluster keeps 5 MB of a partition."""
NODE_EVENTS = TELEMETRY[1].name


def _opens(site: Site, case: Case, subjects: set[str] | None = None) -> int:
    decisions, _ = site.tail.decisions([case.pool])
    return sum(d.state == "OPEN" and (subjects is None or d.subject in subjects) for d in decisions)


@fault(
    GROUP,
    "duplicates",
    "every event sent three times, the copies up to 8 s later",
    "decisions and rows as without",
    quick=True,
    together=True,
)
def duplicates(site: Site, pool: str) -> Case:
    case, chance = Case.plain(site, pool), random.Random(1)
    copies = [(t + chance.uniform(0, 8), REQUESTS, raw) for t, _, raw in case.messages for _ in range(2)]
    case.messages += copies
    case.copies = len(copies)
    return case


@fault(GROUP, "out of order", "every event up to 4 s late, at random", "decisions and rows as without", together=True)
def out_of_order(site: Site, pool: str) -> Case:
    case, chance = Case.plain(site, pool), random.Random(2)
    case.messages = [(t + chance.uniform(0, 4), topic, raw) for t, topic, raw in case.messages]
    return case


@fault(
    GROUP,
    "late events",
    "300 slow requests, one to two minutes late",
    "counted, in no window, decisions as without",
    quick=True,
    together=True,
)
def late(site: Site, pool: str) -> Case:
    case, chance = Case.plain(site, pool), random.Random(3)
    for i in range(300):
        t = chance.uniform(130, 239)
        raw = request(pool, f"gpu-{i % 10:03d}", t - chance.uniform(60, 120), f"{pool}-late-{i}", 9.0)
        case.messages.append((t, REQUESTS, raw))
    case.loose = 300
    case.figures["late"] = 300
    return case


@fault(
    GROUP, "events from the future", "50 slow requests dated two hours ahead", "dead letters, decisions as without", together=True
)
def future(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    case.messages += [
        (60 + 3 * i, REQUESTS, request(pool, f"gpu-{i % 10:03d}", 60 + 3 * i + 7200, f"{pool}-future-{i}", 9.0))
        for i in range(50)
    ]
    case.expect_dead = 50
    return case


@fault(
    GROUP,
    "clock of a node two hours ahead",
    "one healthy node dates everything +2 h, until it ends at 200 s",
    "dead letters, decisions as without the node",
    together=True,
)
def node_clock(site: Site, pool: str) -> Case:
    case = Case(pool)
    events = story(pool)
    wild = [(t, raw) for t, raw in events if b'"gpu-004"' in raw and t < 200]  # what comes last is told with the next tick
    case.control = [(t, raw) for t, raw in events if b'"gpu-004"' not in raw]
    case.send(case.control)
    case.begin(site)
    for t, raw in wild:
        event = json.loads(raw)
        event["ts"] += 7200
        case.messages.append((t, REQUESTS, json.dumps(event).encode()))
    case.expect_dead = len(wild)
    return case


def _rubbish(pool: str) -> list[bytes]:
    chance, good = random.Random(4), [raw for _, raw in story(pool)[:400]]
    name, found = pool.encode(), []
    for i, raw in enumerate(good):
        found.append((
            raw[: len(raw) // 2],
            raw.replace(b'"ok"', b'"o\xff\xfek"'),
            b"[" * 20_000 + name,
            bytes(chance.randrange(256) for _ in range(60)) + name,
            gzip.compress(raw) + name,
            raw + b"}}",
            raw.replace(b"{", b"<"),
            b'{"kind": "request", "pool": ["' + name + b'"]}',
        )[i % 8])  # fmt: skip
    return found


@fault(
    GROUP,
    "corrupt events",
    "400: cut, wrong UTF-8, 20,000 levels deep, random bytes, gzip",
    "400 dead letters with their bytes",
    quick=True,
    together=True,
)
def corrupt(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    case.messages += [(20 + i / 2, REQUESTS, raw) for i, raw in enumerate(_rubbish(pool))]
    case.expect_dead = 400
    return case


def _frames(pool: str, n: int) -> list[bytes]:
    raw = [message for _, message in story(pool, seed=99)[: 10 * n]]
    made: list[bytes] = []
    framer = EventFramer()
    for i in range(0, len(raw), 10):
        made += [frame for _, frame in cut_frames(framer.feed(raw[i : i + 10], range(i, i + 10)), "forged", 9)]
    return made[:n]


@fault(GROUP, "corrupt frames", "100 frames cut short, 100 with bytes overwritten", "200 dead letters, no restart", together=True)
def corrupt_frames(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    for i, frame in enumerate(_frames(pool, 200)):
        at = frame.index(pool.encode()) + len(pool)
        broken = frame[: at + 20] if i % 2 else frame[:at] + b"\xc1" * 8 + frame[at + 8 :]  # 0xc1 is never used in MessagePack
        case.messages.append((30 + i, FRAMES.name, broken))
    case.expect_dead = 200
    return case


@fault(GROUP, "wrong schema version", "40 frames of version 99, 40 events of an unknown kind", "80 dead letters", together=True)
def wrong_version(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    for i, frame in enumerate(_frames(pool, 40)):
        whole = msgspec.msgpack.decode(frame)
        whole["v"] = 99
        case.messages.append((30 + i, FRAMES.name, msgspec.msgpack.encode(whole)))
    for i in range(40):
        case.messages.append(
            (30 + i, REQUESTS, json.dumps({"kind": "poem", "ts": T0_S, "pool": pool, "node": "gpu-001"}).encode())
        )
    case.expect_dead = 80
    return case


@fault(
    MORE,
    "impossible numbers",
    "NaN, Infinity, 1e999, negative, 10^9 s, text, 120 events",
    "120 dead letters, decisions as without",
    quick=True,
    together=True,
)
def impossible(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    values = ("NaN", "Infinity", "-Infinity", "1e999", "-0.5", "1e9", '"fast"', "[]")
    for i in range(120):
        raw = request(pool, f"gpu-{i % 10:03d}", 30 + i, f"{pool}-odd-{i}", 0.3)
        case.messages.append((30 + i, REQUESTS, raw.replace(b'"ttft_s": 0.3', f'"ttft_s": {values[i % len(values)]}'.encode())))
    case.expect_dead = 120
    return case


def _check_oversized(site: Site, case: Case) -> None:
    (row,) = site.reader.query(
        "SELECT count() AS n, max(length(raw)) AS longest, countIf(truncated) AS cut FROM dead_letter_history "
        "WHERE position(raw, {pool:String}) > 0",
        {"pool": case.pool},
    )
    if (row["n"], row["cut"], row["longest"]) != (20, 20, 65536):
        raise Failed(f"dead letters of oversized events: {row}")
    case.figures["longest_bytes"] = row["longest"]


@fault(
    MORE,
    "oversized records",
    "20 events of 700 kB",
    "dead letters, cut at 64 KiB and marked",
    together=True,
    check=_check_oversized,
)
def oversized(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    for i in range(20):
        raw = request(pool, "gpu-001", 30 + i, f"{pool}-large-{i}", 0.3, tenant="x" * 700_000)
        case.messages.append((30 + i, REQUESTS, raw))
    case.expect_dead = 20
    return case


def _node_events(pool: str, *, resets: bool) -> list[tuple[float, bytes]]:
    events = []
    for second in range(0, int(LENGTH_S), 5):
        for node in range(10):
            boot, total = "b1", 1000 * second
            if resets and second >= 100 + 3 * node:
                boot, total = "b2", 1000 * (second - 100 - 3 * node)
            event = {"kind": "node", "ts": T0_S + second, "pool": pool, "node": f"gpu-{node:03d}", "boot_id": boot, "running": 4,
                     "waiting": 0, "generated_tokens_total": total, "preemptions_total": total // 5000}  # fmt: skip
            events.append((float(second), json.dumps(event).encode()))
    return events


@fault(
    MORE,
    "counter resets",
    "counters of every node fall to 0 (engine restarts)",
    "decisions as with counters that go on",
    together=True,
)
def counter_resets(site: Site, pool: str) -> Case:
    requests = story(pool)
    case = Case(pool, sorted(requests + _node_events(pool, resets=False)))
    case.send(requests)
    events = _node_events(pool, resets=True)
    case.messages += [(t, NODE_EVENTS, raw) for t, raw in events]
    case.loose = len(events)
    case.begin(site)
    return case


def _no_open(site: Site, case: Case) -> None:
    if n := _opens(site, case):
        raise Failed(f"{n} opens")
    case.figures["opens"] = 0


@fault(
    MORE, "whole fleet slow", "all ten nodes six times slower at once", "no open: a shared cause", together=True, check=_no_open
)
def fleet_slow(site: Site, pool: str) -> Case:
    case = Case(pool)
    case.send(story(pool, slow=[(f"gpu-{i:03d}", 150.0, LENGTH_S) for i in range(10)]))
    case.begin(site)
    return case


def _silent(site: Site, case: Case) -> None:
    if n := _opens(site, case, {f"gpu-{i:03d}" for i in range(6, 10)}):
        raise Failed(f"{n} opens of silent nodes")
    case.figures["opens_of_silent"] = 0


@fault(MORE, "nodes fall silent", "40 % of the nodes send nothing from 120 s on", "no open of a silent node", together=True,
       check=_silent)  # fmt: skip
def silent(site: Site, pool: str) -> Case:
    case = Case(pool)
    gone = {f'"gpu-{i:03d}"'.encode() for i in range(6, 10)}
    case.send([(t, raw) for t, raw in story(pool) if t < 120 or not any(name in raw for name in gone)])
    case.begin(site)
    return case


def _flapped(site: Site, case: Case) -> None:
    decisions, _ = site.tail.decisions([case.pool])
    mine = [d for d in decisions if d.subject == SLOW and not d.capped]
    before = ["CLOSED", *(d.state for d in mine)]
    trips = [d for d, was in zip(mine, before, strict=False) if d.state == "OPEN" and was == "CLOSED"]
    case.figures |= {"trips": len(trips), "latched": sum(d.latched for d in trips)}
    if len(trips) != 4 or [d.latched for d in trips] != [False, False, False, True] or trips[-1].t - trips[0].t > 600:
        raise Failed(f"{len(trips)} trips, at {[round(d.t - T0_S) for d in trips]}")


@fault(
    MORE,
    "flapping node",
    "40 s slow four times, each time soon after it was closed",
    "three trips in 10 minutes, the next one latches",
    together=True,
    check=_flapped,
)
def flapper(site: Site, pool: str) -> Case:
    case, length_s = Case(pool), 900.0
    slow = [(SLOW, at, at + 40.0) for at in (120, 250, 420, 655)]  # half-open, a relapse would be no trip of its own
    for t, raw in story(pool, slow=slow, length_s=length_s):
        case.messages.append((t * LENGTH_S / length_s, REQUESTS, raw))
        case.valid_s.append(t)
    case.begin(site)
    return case


def _population(site: Site, case: Case) -> None:
    for host in site.hosts:
        blocked = sum(not host.client.allow(f"gpu-{i:03d}", case.pool) for i in range(10))
        if blocked > 1:
            raise Failed(f"{host.name} blocks {blocked} of ten nodes")
    case.figures["blocked_by_a_host"] = "at most 1"


@fault(MORE, "forged population", "40 made-up nodes widen the judge's cap while three nodes are slow",
       "no host blocks more than a tenth of its ten", together=True, check=_population)  # fmt: skip
def population(site: Site, pool: str) -> Case:
    case = Case(pool)
    slow = [(f"gpu-{i:03d}", 150.0, LENGTH_S) for i in (3, 4, 5)]
    case.send(story(pool, slow=slow, nodes=50, per_s=2.0))
    case.begin(site)
    case.hosts_may_differ = True
    return case
