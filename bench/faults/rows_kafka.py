"""Faults of Kafka: a real broker killed, paused, cut off and half-open; a mock broker away, slow, answering with errors."""

from __future__ import annotations

import signal
from typing import Any

from bench.faults.case import Case, play
from bench.faults.registry import fault
from bench.faults.site import Site

__all__: list[str] = []

REAL, MOCK = "kafka", "mock kafka"
_PRODUCE, _FETCH, _COMMIT, _HEARTBEAT, _JOIN, _SYNC = 0, 1, 8, 12, 11, 14
_NOT_LEADER, _TIMED_OUT, _NOT_COORDINATOR, _REBALANCE, _UNKNOWN_MEMBER = 6, 7, 16, 27, 25


@fault(REAL, "broker killed and started", "SIGKILL of a real Kafka under load, 2 s away, same data", "lost 0", quick=True)
def broker_killed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 10.0, [(3.0, site.broker.kill), (5.0, site.broker.start)])
    return case


@fault(REAL, "broker paused", "SIGSTOP of a real Kafka for 5 s", "lost 0")
def broker_paused(site: Site, pool: str) -> Case:
    case, process = Case.plain(site, pool), site.broker._process
    play(
        site,
        [case],
        9.0,
        [(2.5, lambda: process.send_signal(signal.SIGSTOP)), (7.5, lambda: process.send_signal(signal.SIGCONT))],
    )
    return case


@fault(REAL, "connections to Kafka half-open", "nothing passes for 5 s, connections stay", "lost 0; decisions as without")
def half_open(site: Site, pool: str) -> Case:
    case, proxy = Case.plain(site, pool), _proxy(site)

    def begin() -> None:
        proxy.hole = True

    play(site, [case], 9.0, [(2.5, begin), (7.5, proxy.heal)])
    return case


@fault(
    REAL,
    "answers of Kafka lost",
    "40 answers swallowed with their connections (produce, fetch, commit)",
    "appended once: idempotent",
)
def answers_lost(site: Site, pool: str) -> Case:
    case, proxy = Case.plain(site, pool), _proxy(site)

    def lose() -> None:
        proxy.lose_answers = 20

    before = proxy.lost
    play(site, [case], 9.0, [(2.0, lose), (6.0, lose)])
    proxy.heal()
    case.figures["answers_lost"] = proxy.lost - before
    return case


@fault(REAL, "connections to Kafka cut", "all of them reset, every 0.7 s, 8 times", "lost 0")
def cut(site: Site, pool: str) -> Case:
    case, proxy, n = Case.plain(site, pool), _proxy(site), list[int]()
    play(site, [case], 9.0, [(2.0 + 0.7 * i, lambda: n.append(proxy.cut())) for i in range(8)])
    case.figures["sockets_cut"] = sum(n)
    return case


def _proxy(site: Site) -> Any:
    assert site.kafka_proxy is not None
    return site.kafka_proxy


@fault(MOCK, "broker away and back", "connections closed and refused for 5 s, twice", "nothing opens; lost 0")
def away(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    down, up = site.stack.broker_down, site.stack.broker_up
    play(site, [case], 16.0, [(2.0, down), (7.0, up), (10.0, down), (15.0, up)])
    return case


@fault(MOCK, "broker slow", "every answer 300 ms late for 6 s", "decisions as without")
def slow(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 9.0, [(2.0, lambda: site.stack.set_rtt(300)), (8.0, lambda: site.stack.set_rtt(0))])
    return case


@fault(MOCK, "appends refused for a while", "60 answers: not the leader, timed out", "in order, once")
def produce_errors(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    errors = [_NOT_LEADER, _TIMED_OUT] * 10
    play(site, [case], 9.0, [(at, lambda: site.stack.push_errors(_PRODUCE, errors)) for at in (2.0, 4.0, 6.0)])
    site.stack.clear_errors(_PRODUCE)
    return case


@fault(MOCK, "commits fail", "30 answers: timed out, not the coordinator", "committed later")
def commit_errors(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(site, [case], 9.0, [(2.0, lambda: site.stack.push_errors(_COMMIT, [_TIMED_OUT, _NOT_COORDINATOR] * 15))])
    site.stack.clear_errors(_COMMIT)
    return case


@fault(MOCK, "group errors", "heartbeats: unknown member, rebalance in progress, 10 times", "joins again; decisions as without")
def group_errors(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    play(
        site,
        [case],
        12.0,
        [(at, lambda: site.stack.push_errors(_HEARTBEAT, [_UNKNOWN_MEMBER, _REBALANCE])) for at in (2, 4, 6, 8, 10)],
    )
    site.stack.clear_errors(_HEARTBEAT)
    return case
