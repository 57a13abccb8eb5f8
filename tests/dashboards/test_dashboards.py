"""Grafana dashboards: well-formed, free of hard-coded data sources, and every query runs on the real ClickHouse schema."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from bench.archive_queries import Selection, dashboard_queries, expand
from schemas.results import Decision
from sinks.base import cut
from sinks.clickhouse import ClickHouse, open_client
from sinks.migrate import migrate
from sinks.rows import Origin, decision_columns
from streams.embedded import EmbeddedStack

ROOT = Path(__file__).parents[2] / "dashboards"
PLUGIN = "grafana-clickhouse-datasource"
FILES = sorted((ROOT / "json").glob("*.json"))
UNITS = {"s", "percentunit", "reqps", "bytes", "Bps", "short", "none"}


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes(child)


def queries(path: Path) -> list[str]:
    return [node["rawSql"] for node in nodes(load(path)) if "rawSql" in node]


def test_there_is_a_dashboard() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_dashboard_is_described_and_has_a_uid(path: Path) -> None:
    board = load(path)
    assert re.fullmatch(r"slodrift-[a-z-]+", board["uid"])
    assert board["title"]
    assert board["description"]
    assert board["schemaVersion"] == 39
    assert board["templating"]["list"][0] | {"refresh": 1} == {
        "name": "datasource", "label": "ClickHouse", "type": "datasource", "query": PLUGIN, "refresh": 1,
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_data_source_is_hard_coded(path: Path) -> None:
    sources = [node["datasource"] for node in nodes(load(path)) if "datasource" in node]
    assert sources
    assert all(source == {"type": PLUGIN, "uid": "${datasource}"} for source in sources)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_panels_say_what_they_show_and_lie_on_the_grid(path: Path) -> None:
    panels = load(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_values_of_variables_are_quoted(path: Path) -> None:
    for sql in queries(path):
        assert not re.search(r"\$\{?(pool|node|sli)\b(?!:sqlstring\})", re.sub(r"\), \$(pool|node|sli)\)", "", sql)), sql


@pytest.fixture(scope="module")
def clickhouse(embedded_stack: EmbeddedStack) -> Iterator[Any]:
    dsn = f"{embedded_stack.clickhouse_dsn}?database=dashboards"
    migrate(dsn)
    writer = ClickHouse(dsn)
    common = {"pool": "chat/eu/h100", "scope": "node", "subject": "gpu-03", "mode": "enforce"}
    decisions = [
        Decision(t=time.time() - 600.0 + 30 * i, state=state, version=(1, 1, i), tx=f"tx{i}", reason="because", **common)
        for i, state in enumerate(("OPEN", "HALF_OPEN", "CLOSED", "OPEN"))
    ]
    for batch in cut("decisions", "slodrift.decisions", 0, decision_columns(decisions, Origin("slodrift.decisions", 0, 0))):
        writer.insert(batch)
    writer.close()
    client = open_client(dsn)
    client.command(
        """
        INSERT INTO windows (t, pool, node, sli, status, baseline, direction, n, n_tick, kl_service_nats, p999_s, threshold_s,
                             slo_s, log_evidence, log_threshold, src_topic, src_offset)
        SELECT now64(3, 'UTC') - INTERVAL 300 + number % 120 second, 'chat/eu/h100', 'gpu-03',
               if(number < 120, 'ttft_s', 'e2e_s'), 'DEGRADED', 'FROZEN', 'slower', 100, 10, 0.3, 2.5, 1.5, 1.0, 8, 6, 'w', number
        FROM numbers(240)
        """
    )
    client.command(
        """
        INSERT INTO window_hours (t, pool, node, sli, worst, kl_service_nats, kl_mix_nats, p999_s, threshold_s, slo_s,
                                  evidence_margin)
        SELECT toStartOfHour(t), pool, node, sli, 6, kl_service_nats, kl_mix_nats, p999_s, threshold_s, slo_s, 2 FROM windows
        """
    )
    yield client
    client.close()


@pytest.mark.embedded
@pytest.mark.parametrize("hours", [1, 48], ids=["windows", "hours"])
@pytest.mark.parametrize("everything", [True, False], ids=["all", "chosen"])
@pytest.mark.parametrize("sql", [sql for path in FILES for sql in queries(path)])
def test_query_runs_on_the_schema(sql: str, everything: bool, hours: int, clickhouse: Any) -> None:
    chosen = {} if everything else {"pool": ["chat/eu/h100", "it's"], "node": ["gpu-03"], "sli": ["ttft_s", "e2e_s"]}
    now_s = int(time.time())
    result = clickhouse.query(expand(sql, Selection(now_s - 3600 * hours, now_s, chosen)))
    rows = list(result.named_results())
    if "dead_letter" not in sql and "finding_history" not in sql:
        assert rows, "there are such rows"
    if "time" in result.column_names:
        times = [row["time"] for row in rows]
        assert all(a <= b for a, b in pairwise(times))


def test_provisioning_names_what_is_mounted() -> None:
    yaml = YAML(typ="safe")
    (source,) = yaml.load(ROOT / "provisioning/datasources/slodrift.yaml")["datasources"]
    assert source["type"] == PLUGIN
    assert source["uid"]
    assert source["secureJsonData"] == {"password": "$SLODRIFT_CLICKHOUSE_PASSWORD"}
    (provider,) = yaml.load(ROOT / "provisioning/dashboards/slodrift.yaml")["providers"]
    mounts = yaml.load(ROOT.parent / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./dashboards/json:{provider['options']['path']}:ro" in mounts
    assert "./dashboards/provisioning:/etc/grafana/provisioning:ro" in mounts


def test_benchmark_measures_every_query() -> None:
    assert sorted(sql for _, sql in dashboard_queries()) == sorted(sql for path in FILES for sql in queries(path))
