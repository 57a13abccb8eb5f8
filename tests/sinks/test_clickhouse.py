from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from schemas.deadletter import DeadLetter
from schemas.errors import ConfigError, SinkBackpressure, SinkError, SinkRejected
from schemas.results import Decision, Finding
from sinks import clickhouse as module
from sinks.base import Batch, Columns, cut
from sinks.clickhouse import ClickHouse, open_client
from sinks.rows import Origin, dead_letter_columns, decision_columns, finding_columns, window_columns

pytestmark = pytest.mark.embedded

NOW_S = float(int(time.time()) - 3600)
HOSTILE = [
    "'; DROP TABLE findings; --",
    '"',
    "\\",
    "\\'",
    "\0",
    "{x:String}",
    "%(x)s",
    "/*",
    "é 漢字 \U0001f600",
    "\u202e",
    "a\nb",
    "`",
]


def batch(table: str, columns: Columns) -> Batch:
    (only,) = cut(table, columns["src_topic"][0], columns["src_partition"][0], columns)
    return only


def finding(**fields: Any) -> Finding:
    return Finding(t=NOW_S, pool="p", finding=fields.pop("finding", "improvement"), **fields)


def decision(seq: int, state: Any = "OPEN", **fields: Any) -> Decision:
    t = NOW_S + seq
    return Decision(**{
        "t": t, "pool": "p", "scope": "node", "subject": "n1", "state": state, "version": (1, 4, seq), "tx": f"tx{seq}",
        "mode": "enforce", "reason": "slow", "not_after": t + 30, "window_end": t, "evidence": {"kl_nats": 0.3}, **fields,
    })  # fmt: skip


def windows(n: int = 3) -> dict[str, Any]:
    return {
        "t": [int(NOW_S * 1000)] * n, "pool": ["p"] * n, "node": [f"n{i}" for i in range(n)], "sli": ["ttft_s"] * n,
        "status": ["OK"] * n, "n": np.arange(n, dtype=np.uint32), "kl_nats": np.array([0.25, np.nan, 0.5], np.float32)[:n],
        "alarm": np.array([True, False, False])[:n],
    }  # fmt: skip


def test_rows_come_back_as_they_went_in(clickhouse: ClickHouse) -> None:
    clickhouse.insert(batch("windows", window_columns(windows(), Origin("w", 0, 7))))
    rows = clickhouse.query("SELECT node, n, kl_nats, p999_s, alarm, src_offset, src_idx FROM window_history ORDER BY node")
    assert rows == [
        {"node": "n0", "n": 0, "kl_nats": 0.25, "p999_s": None, "alarm": True, "src_offset": 7, "src_idx": 0},
        {"node": "n1", "n": 1, "kl_nats": None, "p999_s": None, "alarm": False, "src_offset": 7, "src_idx": 1},
        {"node": "n2", "n": 2, "kl_nats": 0.5, "p999_s": None, "alarm": False, "src_offset": 7, "src_idx": 2},
    ]


def test_raw_bytes_of_a_dead_letter_survive(clickhouse: ClickHouse) -> None:
    raw = bytes(range(256))
    letter = DeadLetter(raw=raw, stage="decode", reason="bad_json", detail="x", topic="t", partition=1, offset=2, size_bytes=300)
    columns = dead_letter_columns(letter, int(NOW_S * 1000), Origin("dlq", 0, 0))
    clickhouse.insert(batch("dead_letters", columns))
    (row,) = clickhouse.query("SELECT hex(raw) AS raw, truncated, size_bytes, origin_offset FROM dead_letter_history")
    assert row == {"raw": raw.hex().upper(), "truncated": True, "size_bytes": 300, "origin_offset": 2}


def test_a_message_dead_lettered_twice_is_seen_once(clickhouse: ClickHouse) -> None:
    letter = DeadLetter(raw=b"x", stage="decode", reason="bad_json", topic="t", partition=1, offset=2, sha256="00")
    for offset in (0, 1):
        clickhouse.insert(
            batch("dead_letters", dead_letter_columns(letter, int(NOW_S * 1000) + offset, Origin("dlq", 0, offset)))
        )
    assert clickhouse.query("SELECT count() AS n FROM dead_letter_history") == [{"n": 1}]


def test_a_window_that_is_emitted_again_is_seen_once_and_the_later_one_wins(clickhouse: ClickHouse) -> None:
    clickhouse.insert(batch("windows", window_columns(windows(1), Origin("w", 0, 7))))
    again = windows(1) | {"n": np.array([9], np.uint32)}
    clickhouse.insert(batch("windows", window_columns(again, Origin("w", 0, 8))))
    assert clickhouse.query("SELECT n FROM window_history") == [{"n": 9}]


def test_findings_that_differ_in_evidence_alone_are_two(clickhouse: ClickHouse) -> None:
    both = [finding(finding="slo_burn", node="n1", evidence={"sli": sli}) for sli in ("ttft_s", "e2e_s")]
    for offset in (1, 2):  # the second time is a repetition
        clickhouse.insert(batch("findings", finding_columns(both, Origin("f", 0, offset))))
    assert clickhouse.query("SELECT evidence FROM finding_history ORDER BY evidence") == [
        {"evidence": '{"sli":"e2e_s"}'}, {"evidence": '{"sli":"ttft_s"}'},
    ]  # fmt: skip


def test_decision_of_a_replaced_judge_is_void(clickhouse: ClickHouse) -> None:
    log = [decision(1), decision(2, version=(1, 9, 2), state="CLOSED"), decision(3, version=(1, 4, 3))]
    clickhouse.insert(batch("decisions", decision_columns(log, Origin("d", 0, 0))))
    rows = clickhouse.query("SELECT tx, void FROM decision_history ORDER BY seq")
    assert rows == [{"tx": "tx1", "void": 0}, {"tx": "tx2", "void": 0}, {"tx": "tx3", "void": 1}]
    assert clickhouse.query("SELECT * FROM breakers") == []


def test_breakers_shows_what_is_not_closed_now(clickhouse: ClickHouse) -> None:
    log = [
        decision(1), decision(2, subject="n2"), decision(3, "HALF_OPEN"), decision(4, "CLOSED", subject="n2"),
        decision(5, subject="n3", capped=True),
    ]  # fmt: skip
    clickhouse.insert(batch("decisions", decision_columns(log, Origin("d", 0, 0))))
    assert clickhouse.query("SELECT subject, state, mode FROM breakers") == [
        {"subject": "n1", "state": "HALF_OPEN", "mode": "enforce"}
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_before_the_engine_sees_them(clickhouse: ClickHouse, bad: float) -> None:
    with pytest.raises(SinkRejected, match=r"findings\.score, row 1"):
        clickhouse.insert(batch("findings", finding_columns([finding(score=0.5), finding(score=bad)], Origin("f", 0, 1))))
    assert clickhouse.query("SELECT count() AS n FROM findings") == [{"n": 0}]


@pytest.mark.parametrize(
    ("column", "value"),
    [("n", -1), ("n", 2**32), ("n", None), ("n", "many"), ("pool", None), ("t", 2**63), ("kl_nats", "x"), ("src_offset", -1)],
)
def test_value_that_its_column_cannot_hold_is_rejected(clickhouse: ClickHouse, column: str, value: Any) -> None:
    good = batch("windows", window_columns(windows(1), Origin("w", 0, 7)))
    bad = replace(good, columns=good.columns | {column: [value]})
    with pytest.raises(SinkRejected):
        clickhouse.insert(bad)
    clickhouse.insert(good)  # and the connection still works
    assert clickhouse.query("SELECT count() AS n FROM windows") == [{"n": 1}]


def test_batch_over_two_days_is_no_single_block_and_refused(clickhouse: ClickHouse) -> None:
    columns = window_columns(windows(2), Origin("w", 0, 7))
    columns["t"] = [columns["t"][0], columns["t"][0] - 86_400_000]
    with pytest.raises(SinkError):
        clickhouse.insert(Batch("windows", "w", 0, columns))
    assert clickhouse.query("SELECT count() AS n FROM windows") == [{"n": 0}]


def test_missing_tables_keep_the_batch_and_say_what_to_do(empty_dsn: str) -> None:
    connection = ClickHouse(empty_dsn.partition("?")[0])
    with pytest.raises(SinkBackpressure, match="slodrift migrate"):
        connection.insert(batch("windows", window_columns(windows(), Origin("w", 0, 7))))
    with pytest.raises(SinkBackpressure, match="slodrift migrate"):
        connection.query("SELECT * FROM windows")
    connection.close()


def test_unknown_table_is_rejected(clickhouse: ClickHouse) -> None:
    with pytest.raises(SinkRejected, match="no table"):
        clickhouse.insert(Batch("windows; DROP TABLE windows", "w", 0, window_columns(windows(), Origin("w", 0, 7))))


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_words_are_values_and_nothing_else(clickhouse: ClickHouse, word: str) -> None:
    clickhouse.insert(batch("findings", finding_columns([finding(node=word, cause=word)], Origin(word, 0, 1))))
    rows = clickhouse.query("SELECT node, cause, src_topic FROM findings WHERE node = {node:String}", {"node": word})
    assert rows == [{"node": word, "cause": word, "src_topic": word}]
    assert clickhouse.query("SELECT count() AS n FROM findings") == [{"n": 1}]


def test_query_that_is_wrong_is_a_sink_error(clickhouse: ClickHouse) -> None:
    with pytest.raises(SinkError, match="nonsense"):
        clickhouse.query("SELECT nonsense")


def test_connection_closed_by_hand_opens_again(clickhouse: ClickHouse) -> None:
    clickhouse.close()
    assert clickhouse.query("SELECT 1 AS one") == [{"one": 1}]


def test_nobody_at_the_address_is_backpressure_in_one_sentence() -> None:
    connection = ClickHouse("clickhouse://default:hidden-word@127.0.0.1:1/slodrift", timeout_s=1)
    with pytest.raises(SinkBackpressure, match="does not answer: Connection refused") as caught:
        connection.query("SELECT 1")
    assert "hidden-word" not in str(caught.value)
    with pytest.raises(SinkBackpressure):
        connection.insert(batch("windows", window_columns(windows(), Origin("w", 0, 7))))


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, nobody answers
        yield server.getsockname()[1]


def test_server_that_never_answers_is_backpressure(silent_port: int) -> None:
    with pytest.raises(SinkBackpressure):
        ClickHouse(f"clickhouse://127.0.0.1:{silent_port}/x", timeout_s=0.1).query("SELECT 1")


def test_dsn_of_another_kind_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="clickhouses://"):
        open_client("postgres://localhost/x")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (252, SinkBackpressure), (241, SinkBackpressure), (242, SinkBackpressure), (60, SinkBackpressure),
        (516, SinkBackpressure), (999, SinkBackpressure), (319, SinkBackpressure), (None, SinkBackpressure),
        (53, SinkRejected), (349, SinkRejected),
        (117, SinkRejected), (123456, SinkBackpressure),
    ],
)  # fmt: skip
def test_only_errors_of_the_data_reject(code: int | None, expected: type[SinkError]) -> None:
    error = DatabaseError("Code: x", code=code) if code else OperationalError("gone")
    assert type(module._translate(error)) is expected
