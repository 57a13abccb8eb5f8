"""One performance of the demo: stage, fleet, serving host, story, and the ClickHouse rows behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from slodrift_client import BreakerClient

from schemas.errors import SlodriftError
from sinks.clickhouse import ClickHouse
from streams.demo.host import HostGate
from streams.demo.narrator import Narrator
from streams.demo.results import NotInTime, PipelineResults
from streams.demo.stage import POLICY_FILE, Stage, set_stage
from streams.demo.story import Deadlines, Story
from streams.demo.traffic import LiveFleet
from streams.explain import decision_from_clickhouse, explain
from streams.simulate.engine import NodeSpec
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.output import EventProducer
from streams.simulate.router import Router
from streams.simulate.workload import PoissonWorkload

__all__ = ["DemoSpec", "perform"]

_ARCHIVE_DEADLINE_S = 15.0


@dataclass(frozen=True)
class DemoSpec:
    """What is played. The requests are short, so that a node answers many a second and little time says much."""

    seed: int = 7
    nodes: int = 6
    rps: float = 72.0
    fault: str = "slow_node"
    strength: float = 4.0
    pool: str = "chat-8b/eu/l40s"
    policy_file: Path = POLICY_FILE
    deadlines: Deadlines = Deadlines()


def perform(spec: DemoSpec, narrator: Narrator) -> bool:
    """Play it; returns whether everything happened. What did not is told, with its reason."""
    narrator.title(f"slodrift demo: {spec.nodes} simulated nodes, {spec.rps:g} requests/s, pool {spec.pool}, seed {spec.seed}")
    try:
        with set_stage(spec.policy_file, lambda text: narrator.say("started", text)) as stage:
            node = _play(spec, stage, narrator)
            _rows(spec, stage, node, narrator)
    except SlodriftError as exc:
        narrator.say("failed", str(exc))
        return False
    narrator.say("done", "everything above was read from Kafka topics, from Redis by slodrift_client, and from ClickHouse")
    return True


def _play(spec: DemoSpec, stage: Stage, narrator: Narrator) -> str:
    arrivals, behaviour, choice = np.random.default_rng(spec.seed).spawn(3)
    names = tuple(f"gpu-{i:02d}" for i in range(spec.nodes))
    node = str(choice.choice(names))
    engine = NodeSpec(prefill_tokens_per_s=20_000.0, step_base_s=0.008, step_per_seq_s=0.0002)
    workload = PoissonWorkload(spec.rps, arrivals, prompt_tokens=250, prompt_sigma=0.5, output_tokens=40, output_sigma=0.4)
    redis_url = stage.settings.redis_url.get_secret_value()
    with BreakerClient(redis_url, stage.settings.fleet, [spec.pool], pool_sizes={spec.pool: spec.nodes}) as client:
        gate = HostGate(client, spec.pool)
        router = Router("round_robin", gate)
        fleet = Fleet(FleetSpec(spec.pool, names, engine, timeout_s=10.0), workload, behaviour, start_s=0.0, router=router)
        with (
            PipelineResults(stage.settings, spec.pool) as results,
            LiveFleet(fleet, EventProducer(stage.settings), gate.ended) as live,
        ):

            def check() -> None:
                stage.check()
                live.check()

            Story(node, spec.pool, spec.fault, spec.strength, live, results, client, gate, narrator, check, spec.deadlines).tell()
    return node


def _rows(spec: DemoSpec, stage: Stage, node: str, narrator: Narrator) -> None:
    """What ClickHouse holds of it. The engine serves one process at a time, so the archive ends first."""
    stage.stop_judging()
    _until(stage.archived, "the archive storing everything", _ARCHIVE_DEADLINE_S)
    stage.stop_archive()
    clickhouse = ClickHouse(stage.settings.clickhouse_dsn.get_secret_value())
    try:
        decisions = clickhouse.query(
            "SELECT formatDateTime(t, '%H:%i:%S') AS at, subject, state, substring(tx, 1, 8) AS tx, reason FROM decision_history "
            "WHERE pool = {pool:String} ORDER BY t, seq",
            {"pool": spec.pool},
        )
        narrator.table("ClickHouse: decision_history", decisions)
        windows = clickhouse.query(
            "SELECT sli, status, count() AS ticks, round(toFloat64(max(kl_service_nats)), 2) AS max_kl_service_nats, "
            "round(toFloat64(max(log_evidence - log_threshold)), 1) AS max_evidence_margin, "
            "round(toFloat64(max(p999_s)), 3) AS max_p999_s FROM window_history "
            "WHERE pool = {pool:String} AND node = {node:String} AND endsWith(sli, '_s') AND status != 'LEARNING' "
            "GROUP BY sli, status ORDER BY sli, status",
            {"pool": spec.pool, "node": node},
        )
        narrator.table(f"ClickHouse: window_history of {node}", windows)
        opened = [row for row in decisions if row["state"] == "OPEN" and row["subject"] == node]
        if not opened or not windows:
            raise NotInTime("the rows in ClickHouse did not appear: decisions or windows are missing")
        for letter in clickhouse.query(
            "SELECT stage, reason, any(detail) AS detail FROM dead_letter_history GROUP BY stage, reason"
        ):
            raise SlodriftError(f"something was refused by the {letter['stage']}: {letter['reason']}: {letter['detail']}")
        narrator.title(f"slodrift explain {opened[0]['tx']}")
        narrator.lines(explain(decision_from_clickhouse(clickhouse, opened[0]["tx"])))
    finally:
        clickhouse.close()


def _until(look: Callable[[], bool], what: str, deadline_s: float) -> None:
    pause = threading.Event()
    for _ in range(int(deadline_s / 0.25)):
        if look():
            return
        pause.wait(0.25)
    raise NotInTime(f"{what} did not happen within {deadline_s:g} s")
