"""A month of a fleet's windows, decisions and findings inside ClickHouse: windows of a real judge, drawn again at random.

A judge watches a small fleet, healthy nodes and slow ones; its windows become two tables of samples. Each series of the large
fleet takes one of the healthy ones for every minute, and of the slow ones for every tick of an incident: the rows that the
archive keeps (`streams.worker.archive_thin`). So values, zeros and compressibility are those of the judge, not of a formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from clickhouse_connect.driver.client import Client

from bench.archive_sink import Blocks, store
from bench.scale_load import LoadShape, batches
from schemas.policy import PoolPolicy, Slo
from schemas.results import BreakerState, Decision, Finding
from schemas.windows import encode_windows
from sinks.base import cut
from sinks.clickhouse import ClickHouse
from sinks.rows import Origin, decision_columns, finding_columns
from streams.judge import PoolJudge

__all__ = ["Month", "fill_day", "fill_events", "fill_hours", "judged_blocks", "make_samples"]

SAMPLE_NODES, SLOW_NODES = 40, 4
INCIDENT_TICKS = 120
INCIDENTS_PER_NODE_DAY = 0.03
_LEARN_TICKS = 60
_SLIS = ("ttft_s", "tpot_s", "queue_s", "e2e_s", "errors", "throughput")
_HOURS = (
    "t, pool, node, sli, worst, n, kl_service_nats, kl_mix_nats, evidence_margin, p999_s, threshold_s, slo_s, src_topic, "
    "src_partition, src_offset, src_idx"
)
_EPISODE: tuple[BreakerState, ...] = ("OPEN", "HALF_OPEN", "OPEN", "HALF_OPEN", "CLOSED")
_OWN = ("t", "pool", "node", "sli", "src_topic", "src_partition", "src_offset", "src_idx")


@dataclass(frozen=True)
class Month:
    """Size of what is generated; `start_s` is a midnight, Unix seconds."""

    nodes: int
    days: int
    pools: int
    start_s: int
    seed: int

    def pool(self, node: int) -> str:
        """Pool of a node: neighbours share one."""
        return f"model-{node * self.pools // self.nodes:02d}/eu/h100"


def judged_blocks(ticks: int, seed: int, nodes: int = SAMPLE_NODES) -> Blocks:
    """(Unix ms, message of `slodrift.windows`) of one pool; in the second half the first nodes are slow."""
    policy = PoolPolicy(slo={"ttft_s": Slo(threshold=1.0, objective=0.99)})
    judge = PoolJudge("sample", policy, policy_version="bench")
    blocks: Blocks = []
    now = 0
    for tick, node, batch in batches(LoadShape("sample", nodes, 60), range(ticks), seed):
        if tick != now:
            now = tick
            blocks += _encoded(judge.advance())
        if node < SLOW_NODES and tick > ticks // 2:
            batch.latency_s *= 2.5
        judge.requests(batch)
    return blocks + list(_encoded(judge.finish()))


def _encoded(outputs: list[Any]) -> Iterator[tuple[int, bytes]]:
    for out in outputs:
        if out.windows is not None and len((columns := out.windows.columns())["node"]):
            yield round(out.t * 1000), encode_windows(out.pool, round(out.t * 1000), columns)


def make_samples(client: Client, clickhouse: ClickHouse, blocks: Blocks) -> tuple[int, int]:
    """Fill the tables `sample` and `sample_slow` from `blocks`; returns (ticks of each healthy series, rows of slow ones)."""
    store(clickhouse, blocks, quiet_s=0.0)
    client.command("CREATE TABLE sample ENGINE = MergeTree ORDER BY key AS SELECT *, toUInt32(0) AS key FROM windows LIMIT 0")
    client.command("CREATE TABLE sample_slow AS sample")
    ticks = len(blocks) - _LEARN_TICKS
    numbered = (
        "SELECT *, toUInt32OrZero(substring(node, 5)) AS i, indexOf(['" + "', '".join(_SLIS) + "'], sli) - 1 AS s, "
        f"toInt64(src_offset) - {_LEARN_TICKS} AS tick FROM windows"
    )
    client.command(
        f"INSERT INTO sample SELECT * EXCEPT (i, s, tick), toUInt32(((i - {SLOW_NODES}) * 6 + s) * {ticks} + tick) FROM "
        f"({numbered}) WHERE i >= {SLOW_NODES} AND tick >= 0 AND status != 'DEGRADED'"
    )
    client.command(
        "INSERT INTO sample_slow SELECT * EXCEPT (i, s, tick), toUInt32(row_number() OVER () - 1) FROM "
        f"({numbered}) WHERE i < {SLOW_NODES} AND status = 'DEGRADED' AND s < 4"
    )
    for table in ("windows", "window_hours"):
        client.command(f"TRUNCATE TABLE {table}")
    return ticks, int(client.command("SELECT count() FROM sample_slow"))


def fill_day(client: Client, month: Month, day: int, ticks: int, slow_rows: int) -> None:
    """One day of windows, and its hours."""
    start_s = month.start_s + 86_400 * day
    columns = [c[0] for c in client.query("SELECT name FROM system.columns WHERE table = 'windows' AND database = "
                                          "currentDatabase() ORDER BY position").result_rows]  # fmt: skip
    plain = ", ".join(f"s.{c}" for c in columns if c not in _OWN)
    names = ", ".join([*_OWN, *(c for c in columns if c not in _OWN)])
    per_pool = -(-month.nodes // month.pools)
    own = (
        "toDateTime64(at_s, 3, 'UTC'), concat('model-', leftPad(toString(pool_i), 2, '0'), '/eu/h100'), "
        "concat('gpu-', leftPad(toString(node_i), 5, '0')), "
        "['" + "', '".join(_SLIS) + f"'][sli_i + 1], 'slodrift.windows', toUInt32(pool_i), toUInt64(intDiv(at_s, 5)), "
        f"toUInt32((node_i % {per_pool}) * 6 + sli_i)"
    )
    pool_i = f"intDiv(node_i * {month.pools}, {month.nodes})"
    quiet = (
        f"SELECT intDiv(number, 8640) AS node_i, intDiv(number, 1440) % 6 AS sli_i, {pool_i} AS pool_i, "
        f"{start_s} + (number % 1440) * 60 + 5 * (pool_i % 12) AS at_s, "
        f"toUInt32(((node_i % {SAMPLE_NODES - SLOW_NODES}) * 6 + sli_i) * {ticks} + "
        f"cityHash64(number, {day}, {month.seed}) % {ticks}) AS key FROM numbers({month.nodes * 8640})"
    )
    incidents = round(month.nodes * INCIDENTS_PER_NODE_DAY)
    loud = (
        f"SELECT cityHash64(intDiv(number, {4 * INCIDENT_TICKS}), {day}, {month.seed}) AS h, h % {month.nodes} AS node_i, "
        f"intDiv(number, {INCIDENT_TICKS}) % 4 AS sli_i, {pool_i} AS pool_i, {start_s} + 5 * (intDiv(h, 1000000) % "
        f"{17_280 - INCIDENT_TICKS} + number % {INCIDENT_TICKS}) AS at_s, toUInt32(cityHash64(number, {day}, 1) % {slow_rows}) "
        f"AS key FROM numbers({incidents * 4 * INCIDENT_TICKS})"
    )
    for rows, sample in ((quiet, "sample"), (loud, "sample_slow")):
        client.command(
            f"INSERT INTO windows ({names}) SELECT {own}, {plain} FROM ({rows}) AS r INNER JOIN {sample} AS s USING key",
            settings={"max_insert_threads": 1, "max_execution_time": 600},
        )
    client.command(
        f"INSERT INTO window_hours ({_HOURS}) SELECT toStartOfHour(t), pool, node, sli, "
        "max(indexOf(['OK', 'LEARNING', 'IDLE', 'INSUFFICIENT_DATA', 'STALE', 'DEGRADED', 'STALLED'], status)), max(n), "
        "max(kl_service_nats), max(kl_mix_nats), max(log_evidence - log_threshold), max(p999_s), max(threshold_s), max(slo_s), "
        "max(src_topic), max(src_partition), max(src_offset), max(src_idx) FROM windows "
        f"WHERE t >= toDateTime({start_s}, 'UTC') AND t < toDateTime({start_s + 86_400}, 'UTC') GROUP BY 1, 2, 3, 4"
    )


def fill_hours(client: Client, month: Month, day: int, like: int) -> None:
    """The hours of one day without its windows: each is that of any node and hour of the day `like`."""
    shift_s, start_s = 86_400 * (day - like), month.start_s + 86_400 * like
    values = ", ".join(f"r.{name}" for name in _HOURS.split("sli, ", 1)[1].split(", "))
    of_day = f"t >= toDateTime({start_s}, 'UTC') AND t < toDateTime({start_s + 86_400}, 'UTC')"
    client.command(
        f"INSERT INTO window_hours ({_HOURS}) SELECT l.t + INTERVAL {shift_s} SECOND, l.pool, l.node, l.sli, {values} FROM "
        f"(SELECT t, pool, node, sli, cityHash64(node, sli, t, {day}) % {24 * month.nodes} AS k FROM window_hours "
        f"WHERE {of_day}) AS l "
        "INNER JOIN (SELECT *, toUInt64(substring(node, 5)) * 24 + toHour(t) AS k FROM window_hours FINAL "
        f"WHERE {of_day}) AS r ON l.sli = r.sli AND l.k = r.k"
    )


def fill_events(clickhouse: ClickHouse, month: Month) -> list[str]:
    """Decisions and findings of the month through the sink; returns the tx of some decisions."""
    rng = np.random.default_rng(month.seed)
    n = round(month.nodes * INCIDENTS_PER_NODE_DAY * month.days)
    series = {"slowdown": 2.5, "kl_service_nats": 0.41, "log_evidence": 21.4, "log_threshold": 14.36, "p999_s": 1.2, "slo_s": 1.0}
    decisions: dict[str, list[Decision]] = {}
    findings: dict[str, list[Finding]] = {}
    some: list[str] = []
    for i, at_s in enumerate(np.sort(rng.integers(0, month.days * 86_400 - 900, n)).tolist()):
        node = int(rng.integers(month.nodes))
        pool, subject, t_s = month.pool(node), f"gpu-{node:05d}", float(month.start_s + at_s)
        evidence = {"failure_ratio": float(rng.random()), "window_s": 60.0, "series": dict.fromkeys(_SLIS[:4], series)}
        for step, state in enumerate(_EPISODE):
            decision = Decision(
                t=t_s + 60 * step, pool=pool, scope="node", subject=subject, state=state,
                version=(1, 1, len(_EPISODE) * i + step), tx=rng.bytes(16).hex(), mode="enforce",
                reason="ttft_s is slower than its baseline and users are hurt",
                not_after=t_s + 60 * step + 30, policy_version="bench", window_end=t_s + 60 * step, evidence=evidence,
            )  # fmt: skip
            decisions.setdefault(pool, []).append(decision)
        some.append(decision.tx)
        told = findings.setdefault(pool, [])
        told.append(Finding(t=t_s, pool=pool, finding="node_degradation", node=subject, evidence=evidence))
        told.append(Finding(t=t_s, pool=pool, finding="root_cause", node=subject, cause="unknown", score=0.5, evidence=evidence))
    for partition, pool in enumerate(decisions):
        origin = Origin("slodrift.decisions", partition, 0)
        for batch in cut("decisions", origin.topic, partition, decision_columns(decisions[pool], origin)):
            clickhouse.insert(batch)
        origin = Origin("slodrift.findings", partition, 0)
        for batch in cut("findings", origin.topic, partition, finding_columns(findings[pool], origin)):
            clickhouse.insert(batch)
    return some[:: max(1, len(some) // 20)]
