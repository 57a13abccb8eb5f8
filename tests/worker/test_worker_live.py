"""Workers as processes against a broker, the mock cluster and a real Kafka: nothing lost, nothing twice, the same as a replay."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from schemas.contract import decode_head, decode_snapshot
from schemas.deadletter import from_message
from schemas.redis_keys import PoolKeys
from schemas.results import Decision
from schemas.topics import DEADLETTER, FRAMES, SNAPSHOTS
from sinks.clickhouse import ClickHouse
from streams.worker.child import WorkerChild

pytestmark = pytest.mark.embedded

Wait = Callable[..., Any]
_decode = msgspec.json.Decoder(Decision).decode


def apart_from_epoch(lines: list[bytes]) -> list[Any]:
    """Decisions with the epoch of their version blanked."""
    return [msgspec.structs.replace(d, version=(d.version[0], 0, d.version[2])) for d in map(_decode, lines)]


def test_decisions_are_those_of_a_replay_and_reach_redis_and_clickhouse(site: Any, story: Any, wait_until: Wait) -> None:
    expected = story.replayed
    assert [_decode(line).state for line in expected[:3]] == ["OPEN", "HALF_OPEN", "OPEN"]
    frames = story.frames()
    rubbish = b"\x81\xa1v\x01 no frame"
    with site.worker("all", story.policy, idle_s="3600") as worker:
        site.produce([*frames[:500], (story.pool, rubbish), *frames[500:]])
        wait_until(lambda: len(site.decisions()) >= len(expected), "all decisions", 60)
        assert site.decisions() == expected, "byte for byte: a fresh log begins with epoch 0, as a replay does"
        keys, last = PoolKeys("embedded", story.pool), _decode(expected[-1])
        with redis.Redis.from_url(site.stack.redis_url) as reader:
            head = wait_until(lambda: _head(reader, keys, last.version), "the newest decision in Redis")
            snapshot = decode_snapshot(reader.get(keys.snap))
            beat = wait_until(lambda: (h := decode_head(reader.get(keys.head))).hb > head.hb and h, "a heartbeat")
        assert beat.version == last.version
        assert (beat.mode, beat.n_eligible, beat.cap, beat.n_nonclosed) == ("enforce", 10, 1, 1)
        assert [(e.subject, e.state, e.tx) for e in snapshot.entries] == [(last.subject, last.state, last.tx)]
        code, took_s = worker.terminate()
    assert code == 0
    assert took_s < 10
    assert site.committed(site.settings.judge_group, FRAMES.name) == site.ends(FRAMES.name)
    _check_archive(site, story, expected, rubbish)


def _head(reader: Any, keys: PoolKeys, version: tuple[int, int, int]) -> Any:
    raw = reader.get(keys.head)
    head = decode_head(raw) if raw else None
    return head if head is not None and head.version == version else None


def _check_archive(site: Any, story: Any, expected: list[bytes], rubbish: bytes) -> None:
    clickhouse = ClickHouse(site.environ["SLODRIFT_CLICKHOUSE_DSN"])
    try:
        rows = clickhouse.query("SELECT tx, state, subject FROM decision_history WHERE NOT void ORDER BY gen, epoch, seq")
        assert [(r["tx"], r["state"]) for r in rows] == [(d.tx, d.state) for d in map(_decode, expected)]
        (raw,) = clickhouse.query("SELECT count() AS n FROM decisions")
        assert raw["n"] == len(expected), "written once, not only read once"
        (windows,) = clickhouse.query(
            "SELECT count() AS n, uniqExact(node) AS nodes, countIf(status = 'DEGRADED' AND node != 'gpu-003') AS wrong, "
            "countIf(status = 'DEGRADED' AND node = 'gpu-003') AS slow FROM window_history"
        )
        assert windows["nodes"] == 10
        assert windows["wrong"] == 0
        assert windows["slow"] > 10
        (findings,) = clickhouse.query("SELECT count() AS n FROM finding_history WHERE node = 'gpu-003'")
        assert findings["n"] >= 1
        (letter,) = clickhouse.query("SELECT hex(raw) AS raw, stage, reason, origin_topic FROM dead_letter_history")
        assert (bytes.fromhex(letter["raw"]), letter["stage"], letter["reason"]) == (rubbish, "decode", "bad_frame")
        assert letter["origin_topic"] == FRAMES.name
    finally:
        clickhouse.close()


@pytest.mark.parametrize("snapshot_s", ["0.5", "600"], ids=["with snapshots", "without a snapshot yet"])
def test_killed_judge_loses_nothing_and_decides_nothing_twice(site: Any, story: Any, wait_until: Wait, snapshot_s: str) -> None:
    expected = story.replayed
    cut = len(story.events) * 7 // 10  # after the first decisions
    frames, rest = story.frames(stop=cut), story.frames(start=cut)
    first = site.worker("judge", story.policy, idle_s="3600", snapshot_s=snapshot_s)
    first.start()
    site.produce(frames)
    wait_until(lambda: len(site.decisions()) >= 2, "decisions before the kill", 60)
    if snapshot_s == "0.5":
        wait_until(lambda: sum(site.ends(SNAPSHOTS.name)), "a snapshot")
    first.kill()
    before = site.decisions()
    site.produce(rest)
    with site.worker("judge", story.policy, idle_s="3600", snapshot_s="0.5"):
        wait_until(lambda: len(site.decisions()) >= len(expected), "all decisions", 60)
        wait_until(lambda: site.committed(site.settings.judge_group, FRAMES.name) == site.ends(FRAMES.name), "all committed", 30)
    after = site.decisions()
    assert after[: len(before)] == before
    assert apart_from_epoch(after) == apart_from_epoch(expected)
    versions = [_decode(line).version for line in after]
    assert versions == sorted(versions)
    assert versions[-1][1] > versions[0][1], "the second owner has a higher epoch"


def test_second_judge_takes_over_when_the_first_leaves(site: Any, story: Any, wait_until: Wait) -> None:
    expected = story.replayed
    cut = len(story.events) * 7 // 10
    first = site.worker("judge", story.policy, idle_s="3600")
    first.start()
    site.produce(story.frames(stop=cut))
    wait_until(lambda: len(site.decisions()) >= 2, "decisions of the first judge", 60)
    second = site.worker("judge", story.policy, idle_s="3600")
    second.spawn()
    try:
        second.wait_ready(60)
        code, took_s = first.terminate()
        assert code == 0, first.said
        assert took_s < 10
        site.produce(story.frames(start=cut))
        wait_until(lambda: len(site.decisions()) >= len(expected), "all decisions", 60)
        assert apart_from_epoch(site.decisions()) == apart_from_epoch(expected)
    finally:
        second.terminate()


def test_error_of_the_group_does_not_leave_a_worker_without_partitions(site: Any, story: Any) -> None:
    if site.real:
        pytest.skip("the mock cluster answers with errors on demand")
    site.stack.push_errors(14, [42, 42])  # SyncGroup: invalid request
    worker = site.worker("judge", story.policy)
    try:
        assert worker.start(60) == [0, 1, 2, 3]
        assert "answered with an error, joining again" in worker.said
        assert "Traceback" not in worker.said
    finally:
        worker.terminate()


def test_redis_that_went_away_is_told_the_newest_state(site: Any, story: Any, wait_until: Wait) -> None:
    expected = story.replayed
    with site.worker("judge", story.policy, idle_s="3600") as worker:
        site.stack.redis_stop()
        site.produce(story.frames())
        wait_until(lambda: len(site.decisions()) >= len(expected), "all decisions, without Redis", 60)
        site.stack.redis_start()
        keys, last = PoolKeys("embedded", story.pool), _decode(expected[-1])
        with redis.Redis.from_url(site.stack.redis_url) as reader:
            wait_until(lambda: _head(reader, keys, last.version), "the newest state in an empty Redis", 15)
            entries = decode_snapshot(reader.get(keys.snap)).entries
        assert [(e.subject, e.state) for e in entries] == [(last.subject, last.state)]
        assert worker.said.count("Redis does not take decisions") >= 1
        assert "Traceback" not in worker.said


def test_dead_letter_is_in_its_topic_with_bytes_and_origin(site: Any, story: Any, wait_until: Wait) -> None:
    with site.worker("judge", story.policy):
        site.produce([("a", b""), ("b", b"\x00" * 100), ("a", b"{}")])
        found = wait_until(lambda: len(r := site.records(DEADLETTER.name)) >= 3 and r, "three dead letters", 20)
    letters = sorted((from_message(m.value(), m.headers()) for m in found), key=lambda x: x.raw)
    assert [x.raw for x in letters] == [b"", b"\x00" * 100, b"{}"]
    assert {(x.stage, x.topic) for x in letters} == {("decode", FRAMES.name)}
    assert all(x.timestamp_ms > 0 and x.detail for x in letters)


def test_broker_that_is_not_there_is_said_in_one_sentence_and_sigterm_ends_the_wait(story: Any, wait_until: Wait) -> None:
    worker = WorkerChild("judge", {"SLODRIFT_KAFKA_BOOTSTRAP": "127.0.0.1:1"})
    worker.spawn()
    wait_until(lambda: "does not answer" in worker.said, "the sentence", 60)
    assert worker.process is not None
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(2)
    code, took_s = worker.terminate()
    assert code == 0
    assert took_s < 10
    assert "Traceback" not in worker.said
    assert worker.said.count("does not answer") == 1
