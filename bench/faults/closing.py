"""The checks that close every row, whatever the fault was: nothing lost, nothing twice, no wrong open, caps, versions, hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.faults.case import Case
from bench.faults.closing_windows import stored_windows
from bench.faults.site import N_PARTITIONS, Failed, Site, wait_for
from bench.faults.workload import T0_S, Answer, answer_of_frames
from schemas.deadletter import from_message
from schemas.results import Decision
from schemas.topics import DEADLETTER, DECISIONS, FRAMES, WINDOWS
from sinks.rows import Origin, finding_columns

__all__ = ["HOSTS_S", "close", "settle"]

HOSTS_S = 5.0
"""Hosts equal the log so soon after the pipeline has come to rest."""


def settle(site: Site, stall_s: float = 120.0) -> float:
    """Until every group has committed everything; seconds that took.

    Raises:
        Failed: What is left has not become less for `stall_s`; with the last words of the processes.
    """
    began = least_at = time.monotonic()
    least, pause = 1 << 62, threading.Event()
    while True:
        site.supervise()
        lag = site.progress.lag()
        if not any(lag.values()):
            break
        now, left = time.monotonic(), sum(lag.values())
        if 0 <= left < least:
            least, least_at = left, now
        if now - least_at > stall_s:
            raise Failed(f"no progress for {stall_s:g} s; lag {lag}\n{site.said()}")
        pause.wait(0.02)
    took_s = time.monotonic() - began
    for topic in (FRAMES.name, WINDOWS.name, DECISIONS.name, DEADLETTER.name):
        if not site.tail.wait(topic, site.progress.ends(topic), 20):
            raise Failed(f"{topic} could not be read to its end")
    return took_s


def close(site: Site, cases: Sequence[Case]) -> dict[str, Any]:
    """All closing checks for the pools of some cases. Returns figures by pool.

    Raises:
        Failed: One does not hold.
    """
    settled_s = settle(site)
    decisions, _ = site.tail.decisions([case.pool for case in cases])
    live = {c.pool: _live([d for d in decisions if d.pool == c.pool]) for c in cases if not c.hosts_may_differ}
    began = time.monotonic()
    try:
        wait_for(lambda: not site.hosts.equal_to(live), "hosts equal the log", HOSTS_S)
    except Failed as exc:
        raise Failed(f"{exc}: {site.hosts.equal_to(live)[:2]}") from None
    hosts_s = time.monotonic() - began
    if any("ClickHouse does not hold" in child.said for child in site.children):
        raise Failed("an archive found rows missing or twice when it compared ClickHouse with the log")
    if wrong := site.hosts.faults():
        raise Failed("; ".join(wrong[:3]))
    figures = {}
    for case in cases:
        mine = [d for d in decisions if d.pool == case.pool]
        figures[case.pool] = _one(site, case, mine) | {
            "settled_s": round(settled_s, 1), "hosts_s": round(hosts_s, 1),
        }  # fmt: skip
        case.figures |= figures[case.pool]
        if site.restarts:
            case.figures["restarted_by_supervisor"] = site.restarts
    site.restarts = 0
    return figures


def _one(site: Site, case: Case, decisions: list[Decision]) -> dict[str, Any]:
    made = _offline(site, case)
    if _blank(decisions) != _blank(made.decisions):
        raise Failed(
            f"{case.pool}: decisions of the log are not those of its frames: {_brief(decisions)}, {_brief(made.decisions)}"
        )
    known = case.known_answer(site)
    if known is not None and _blank(decisions) != _blank(known.decisions):
        raise Failed(f"{case.pool}: decisions {_brief(decisions)}, without the fault {_brief(known.decisions)}")
    allowed = {(d.pool, d.subject, d.tx) for d in (known or made).decisions}
    opened = {(d.pool, d.subject, d.tx) for d in decisions if d.state == "OPEN"}
    wrong = (opened | site.hosts.opens_seen([case.pool], case.began_s)) - allowed
    if wrong:
        raise Failed(f"{case.pool}: wrong opens {sorted(wrong)[:3]}")
    for pool_epoch in (decisions,):
        if [d.version for d in pool_epoch] != sorted(d.version for d in pool_epoch):
            raise Failed(f"{case.pool}: versions of the log are not monotone")
    rows, judged, raw_rows = stored_windows(site, case, made)
    dead = _dead_letters(site, case)
    if case.expect_dead is not None and dead != case.expect_dead:
        raise Failed(f"{case.pool}: {dead} events in the dead letters, {case.expect_dead} expected")
    _findings_and_decisions(site, case, made, decisions)
    lost = _lost(site, case, judged, dead)
    if lost:
        raise Failed(f"{case.pool}: produced and neither in ClickHouse nor in the dead letters: {lost}")
    return {
        "decisions": len(decisions),
        "wrong_opens": 0,
        "lost": 0,
        "dead": dead,
        "rows": rows,
        "written_twice": raw_rows - rows,
    }


def _offline(site: Site, case: Case) -> Answer:
    """The judge in memory over the frames that are in the log, all partitions as one row of offsets each."""
    answers = Answer()
    for partition in range(N_PARTITIONS):
        records = site.tail.records[FRAMES.name, partition][case.mark[FRAMES.name, partition] :]
        mine = [(r.offset(), r.value()) for r in records if _is_of(case, r.value())]
        if mine:
            found = answer_of_frames(mine, site.policy, partition)
            answers.decisions += found.decisions
            answers.windows += found.windows
            answers.findings += found.findings
            answers.rows += found.rows
            answers.duplicates += found.duplicates
    return answers


def _is_of(case: Case, value: bytes | None) -> bool:
    return bool(value) and case.pool.encode() in value and not (case.without and case.without in value)


def _findings_and_decisions(site: Site, case: Case, made: Answer, decisions: list[Decision]) -> None:
    of_pool = {"pool": case.pool}
    found = site.reader.query("SELECT id FROM finding_history WHERE pool = {pool:String} ORDER BY id", of_pool)
    mine = [f for f in made.findings if f.pool == case.pool]
    expected = sorted(finding_columns(mine, Origin("", 0, 0))["id"]) if mine else []
    if [r["id"] for r in found] != expected:
        raise Failed(f"{case.pool}: {len(found)} findings in ClickHouse, {len(expected)} by the frames")
    rows = site.reader.query(
        "SELECT tx FROM decision_history WHERE NOT void AND pool = {pool:String} ORDER BY gen, epoch, seq", of_pool
    )
    if [r["tx"] for r in rows] != [d.tx for d in decisions]:
        raise Failed(f"{case.pool}: decisions in ClickHouse {[r['tx'] for r in rows]}, in the log {[d.tx for d in decisions]}")


def _dead_letters(site: Site, case: Case) -> int:
    """Every dead letter of the topic since the mark is a row, once; events in the ones that name this pool."""
    letters, mine = set(), 0
    for record in site.tail.since(case.mark, DEADLETTER.name):
        letter = from_message(record.value(), record.headers())
        key = (letter.stage, letter.reason, letter.topic, letter.partition, letter.offset, letter.sha256)
        if key not in letters and case.pool.encode() in letter.raw and letter.stage != "archive":
            mine += letter.count
        letters.add(key)
    first = [site.tail.records[DEADLETTER.name, p][case.mark[DEADLETTER.name, p] :] for p in range(N_PARTITIONS)]
    starts = [records[0].offset() if records else 1 << 62 for records in first]
    (row,) = site.reader.query(
        "SELECT count() AS n, uniqExact(stage, reason, origin_topic, origin_partition, origin_offset, sha256) AS u "
        "FROM dead_letter_history WHERE src_offset >= multiIf(src_partition = 0, {a:UInt64}, src_partition = 1, {b:UInt64}, "
        "src_partition = 2, {c:UInt64}, {d:UInt64})",
        dict(zip("abcd", starts, strict=True)),
    )
    if (row["n"], row["u"]) != (len(letters), len(letters)):
        raise Failed(f"{case.pool}: {row['n']} dead letters in ClickHouse, {len(letters)} in the topic")
    return mine


def _lost(site: Site, case: Case, stored: int, dead: int) -> int:
    """Messages that are nowhere: not in a window, not in the dead letters, no copy, not late, and not in an open slot."""
    (end,) = site.reader.query(
        "SELECT toUnixTimestamp64Milli(max(t)) AS t, count() AS n FROM window_history WHERE pool = {pool:String}",
        {"pool": case.pool},
    )
    closed_s = end["t"] / 1000 - T0_S if end["n"] else -1e9
    due = sum(t < closed_s for t in case.valid_s)
    open_ = len(case.valid_s) - due
    return abs(due - stored) + abs(len(case.messages) - len(case.valid_s) - case.copies - case.loose - dead) if open_ >= 0 else -1


def _live(decisions: list[Decision]) -> dict[str, str]:
    live: dict[str, str] = {}
    for d in decisions:
        if d.capped:
            continue
        live.pop(d.subject, None)
        if d.state != "CLOSED":
            live[d.subject] = d.tx
    return live


def _blank(decisions: list[Decision]) -> list[Decision]:
    return [msgspec.structs.replace(d, version=(1, 0, d.version[2])) for d in decisions]


def _brief(decisions: list[Decision]) -> list[tuple[float, str, str]]:
    return [(round(d.t - T0_S), d.subject, d.state) for d in decisions]
