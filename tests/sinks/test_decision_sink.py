from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from schemas.contract import Entry, decode_head, decode_snapshot
from schemas.errors import SinkBackpressure, SinkRejected
from schemas.redis_keys import PoolKeys
from schemas.results import Decision
from schemas.signing import Signer
from sinks import redis_decisions as module
from sinks.projection import Projection
from sinks.redis_decisions import DecisionSink, Fenced, OverCap, connect
from streams.embedded.redis_server import RedisServer

pytestmark = pytest.mark.embedded

KEYS = PoolKeys("f", "p")
V1 = (1, 5, 1)


def decision(seq: int, state: Any = "OPEN", subject: str = "n1", **fields: Any) -> Decision:
    t = 1000.0 + seq
    return Decision(**{
        "t": t, "pool": "p", "scope": "node", "subject": subject, "state": state, "version": (1, 5, seq), "tx": f"tx{seq}",
        "mode": "enforce", "not_after": None if state == "CLOSED" else t + 30, **fields,
    })  # fmt: skip


def entry(subject: str = "n1", **fields: Any) -> Entry:
    return Entry(**{
        "scope": "node", "subject": subject, "state": "OPEN", "version": V1, "tx": "t", "opened_ms": 0, "not_after_ms": 1_030_000,
        **fields,
    })  # fmt: skip


def test_a_ramp_is_a_half_open_that_sheds_and_needs_no_probes() -> None:
    projection = Projection()
    for seq, state, ramp, ratio in (
        (1, "OPEN", 0, 0.0),
        (2, "HALF_OPEN", 0, 0.0),
        (3, "HALF_OPEN", 1, 0.1),
        (4, "HALF_OPEN", 2, 0.5),
    ):
        evidence = {"ramp": ramp} if ramp else {}
        d = decision(seq, state, action="shed" if ramp else "eject", admit_ratio=ratio, evidence=evidence)
        projection.apply(d, clock_s=d.t, now_ms=1_000_000 + seq)
        (now,) = projection.entries
        assert (now.state, now.admit_ratio, now.ramping, now.probe is not None) == (state, ratio, ramp > 0, seq == 2)
        assert now.opened_ms == 1_000_001  # the hash of who is admitted goes by it: nobody loses a node on the way


def new_sink(redis: Redis, now_ms: int = 1_000_000) -> DecisionSink:
    return DecisionSink(redis, "f", now_ms=lambda: now_ms)


async def write(sink: DecisionSink, entries: list[Entry], version: tuple[int, int, int] = V1, **fields: Any) -> None:
    await sink.assert_state("p", entries, **{"version": version, "n_eligible": 100, "cap": 10, "mode": "enforce", **fields})


async def head(redis: Redis) -> Any:
    return decode_head(await redis.get(KEYS.head))


async def snapshot(redis: Redis) -> Any:
    return decode_snapshot(await redis.get(KEYS.snap))


async def test_state_is_there_and_heartbeats_only_count_on(redis: Redis) -> None:
    sink = new_sink(redis)
    await sink.setup()
    await write(sink, [entry()])
    first = await head(redis)
    assert (first.version, first.hb, first.n_nonclosed, first.cap) == (V1, 0, 1, 10)
    before = await redis.get(KEYS.snap)
    for _ in range(3):
        await sink.heartbeat("p")
    after = await head(redis)
    assert (after.version, after.hb, after.snap_sha256) == (V1, 3, first.snap_sha256)
    assert await redis.get(KEYS.snap) == before
    assert await redis.xlen(KEYS.log) == 1


async def test_empty_state_is_a_state(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [])
    assert (await snapshot(redis)).entries == ()
    assert (await head(redis)).n_nonclosed == 0


async def test_same_version_again_goes_on_counting(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [entry()])
    await write(sink, [entry()], n_eligible=90, cap=9)
    assert ((await head(redis)).hb, (await head(redis)).n_eligible) == (1, 90)


async def test_decisions_are_in_the_stream_once(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [entry()], (1, 5, 2), decisions=[decision(1), decision(2)])
    await sink.heartbeat("p")
    await write(sink, [entry()], (1, 5, 3), decisions=[decision(3)])
    assert [i for i, _ in await redis.xrange(KEYS.log)] == [b"5-1", b"5-2", b"5-3"]


async def test_closed_subject_leaves_its_hash(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [entry("n1"), entry("n2")])
    await write(sink, [entry("n2")], (1, 5, 2))
    assert await redis.exists(KEYS.subject("n1")) == 0
    assert await redis.exists(KEYS.subject("n2")) == 1


async def test_older_judge_is_fenced(redis: Redis) -> None:
    await write(new_sink(redis), [entry()], (1, 6, 1))
    zombie = new_sink(redis)
    with pytest.raises(Fenced, match="1-6-1"):
        await write(zombie, [], (1, 5, 9))
    with pytest.raises(Fenced):
        await zombie.heartbeat("p")
    assert zombie.refused == {"STALE": 2}
    assert (await head(redis)).version == (1, 6, 1)


async def test_more_than_the_cap_is_refused(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [])
    before = await head(redis)
    with pytest.raises(OverCap, match="OVER_CAP 2 1"):
        await write(sink, [entry("n1"), entry("n2")], (9, 9, 9), cap=1)
    assert await head(redis) == before


@pytest.mark.parametrize(
    "bad", [[entry(state="CLOSED")], [entry(), entry()], [entry(not_after_ms=None)], [entry(not_after_ms=9_000_000)]]
)
async def test_state_that_breaks_the_contract_is_rejected_here(redis: Redis, bad: list[Entry]) -> None:
    with pytest.raises(SinkRejected, match="pool p"):
        await write(new_sink(redis), bad)
    assert await redis.keys("*") == []


async def test_many_writes_at_once_never_overtake_each_other(redis: Redis) -> None:
    sink = new_sink(redis)
    await write(sink, [])
    await asyncio.gather(*(sink.heartbeat("p") for _ in range(30)), *(write(sink, [], (1, 5, s)) for s in range(2, 30)))
    assert (await head(redis)).version == (1, 5, 29)
    assert sink.refused == {}


async def test_heartbeat_of_an_unknown_or_forgotten_pool_does_nothing(redis: Redis) -> None:
    sink = new_sink(redis)
    await sink.heartbeat("p")
    await write(sink, [])
    sink.forget("p")
    await redis.delete(KEYS.head)
    await sink.heartbeat("p")
    assert await redis.exists(KEYS.head) == 0


async def test_redis_away_keeps_the_newest_state_alone(tmp_path: Any) -> None:
    server = RedisServer(tmp_path)
    server.start()
    redis = connect(server.url)
    try:
        sink = new_sink(redis)
        await write(sink, [entry("n1")], (1, 5, 1), decisions=[decision(1)])
        server.stop()
        for seq in range(2, 6):
            with pytest.raises(SinkBackpressure, match="Redis is away"):
                await write(sink, [entry(f"n{seq}", version=(1, 5, seq))], (1, 5, seq), decisions=[decision(seq)])
        server.start()  # empty, and without the function library
        await sink.heartbeat("p")
        assert (await head(redis)).version == (1, 5, 5)
        assert [e.subject for e in (await snapshot(redis)).entries] == ["n5"]
        assert [i for i, _ in await redis.xrange(KEYS.log)] == [b"5-2", b"5-3", b"5-4", b"5-5"]
    finally:
        await redis.aclose()
        server.stop()


async def test_decisions_kept_for_the_stream_are_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    server = RedisServer(tmp_path)
    server.start()
    redis = connect(server.url)
    try:
        server.stop()
        sink = new_sink(redis)
        for seq in range(1, 10):
            with pytest.raises(SinkBackpressure):
                await write(sink, [], (1, 5, seq), decisions=[decision(seq)])
        server.start()
        await sink.heartbeat("p")
        assert [i for i, _ in await redis.xrange(KEYS.log)] == [b"5-7", b"5-8", b"5-9"]
    finally:
        await redis.aclose()
        server.stop()


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, nobody answers
        yield server.getsockname()[1]


async def test_redis_that_never_answers_is_backpressure(silent_port: int) -> None:
    redis = connect(f"redis://127.0.0.1:{silent_port}/0", timeout_s=0.05)
    sink = new_sink(redis)
    with pytest.raises(SinkBackpressure):
        await sink.setup()
    with pytest.raises(SinkBackpressure):
        await write(sink, [])
    await sink.close()


async def test_full_redis_is_backpressure(redis: Redis) -> None:
    sink = new_sink(redis)
    await sink.setup()
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(SinkBackpressure, match="does not take writes"):
            await write(sink, [entry()])
    finally:
        await redis.config_set("maxmemory", "0")
    await sink.heartbeat("p")
    assert (await head(redis)).version == V1


async def test_judge_with_the_least_rights_writes_and_cannot_load(redis: Redis, redis_server: RedisServer) -> None:
    admin = new_sink(redis)
    await admin.setup()
    rights = [
        "+get",
        "+set",
        "+del",
        "+pexpire",
        "+hset",
        "+xadd",
        "+xrevrange",
        "+publish",
        "+fcall",
        "+fcall_ro",
        "+client",
        "+hello",
    ]
    await redis.execute_command(
        "ACL", "SETUSER", "judge", "reset", "on", ">pw", "~{slodrift:f:*", "&{slodrift:f:*", "-@all", *rights
    )
    url = redis_server.url.replace("redis://", "redis://judge:pw@")
    judge = connect(url)
    try:
        sink = new_sink(judge)
        await sink.setup()
        await write(sink, [entry()])
        with pytest.raises(ResponseError):
            await judge.eval("return 1", 0)
        other = DecisionSink(judge, "other-fleet")
        with pytest.raises(SinkRejected, match="may not"):
            await other.assert_state("p", [], version=V1, n_eligible=1, cap=0, mode="shadow")
        await redis.function_delete("slodrift")
        with pytest.raises(SinkBackpressure, match="slodrift migrate"):
            await sink.heartbeat("p")
        await admin.setup()
        await sink.heartbeat("p")
    finally:
        await judge.aclose()
        await redis.execute_command("ACL", "DELUSER", "judge")


@pytest.mark.parametrize("said", ["LOADING Redis is loading", "CLUSTERDOWN x", "NOREPLICAS Not enough", "MISCONF x", "BUSY x"])
def test_errors_that_time_cures_are_backpressure(said: str) -> None:
    assert isinstance(module._refusal(ResponseError(said)), SinkBackpressure)


def test_other_errors_are_rejections() -> None:
    assert isinstance(module._refusal(ResponseError("ERR nonsense")), SinkRejected)


def test_own_clock_goes_on_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = module._steady_ms()
    before = clock()
    monkeypatch.setattr(module.time, "time_ns", lambda: 0)
    assert 0 <= clock() - before < 60_000


class TestProjection:
    def test_folds_to_what_is_not_closed(self) -> None:
        projection = Projection()
        log = [decision(1), decision(2, subject="n2"), decision(3, "HALF_OPEN"), decision(4, "CLOSED", "n2")]
        for d in log:
            projection.apply(d, clock_s=d.t, now_ms=5_000_000)
        (only,) = projection.entries
        assert (only.subject, only.state, only.version, only.opened_ms) == ("n1", "HALF_OPEN", (1, 5, 3), 5_000_000)
        assert only.probe is not None
        assert projection.version == (1, 5, 4)

    def test_repeated_and_older_decisions_change_nothing(self) -> None:
        projection = Projection()
        for d in (decision(2), decision(1, "CLOSED"), decision(2, "CLOSED")):
            projection.apply(d, clock_s=d.t, now_ms=0)
        assert [e.subject for e in projection.entries] == ["n1"]

    def test_capped_decision_takes_nothing_away(self) -> None:
        projection = Projection()
        projection.apply(decision(1, capped=True), clock_s=1001, now_ms=0)
        assert projection.entries == []
        assert projection.version == (1, 5, 1)

    def test_end_moves_to_the_writers_clock_by_what_is_left(self) -> None:
        projection = Projection()
        projection.apply(decision(1), clock_s=1021.0, now_ms=9_000_000)  # 10 of 30 s are left
        assert projection.entries[0].not_after_ms == 9_010_000
        projection.apply(decision(2), clock_s=5000.0, now_ms=9_000_000)  # long over
        assert projection.entries[0].not_after_ms == 9_000_000

    def test_end_is_bounded_unless_latched(self) -> None:
        projection = Projection()
        projection.apply(decision(1, not_after=9e9), clock_s=1001, now_ms=0)
        projection.apply(decision(2, not_after=None, subject="n2"), clock_s=1001, now_ms=0)
        projection.apply(decision(3, not_after=None, subject="n3", latched=True), clock_s=1001, now_ms=0)
        ends = {e.subject: (e.not_after_ms, e.on_stale) for e in projection.entries}
        assert ends == {"n1": (300_000, "decay"), "n2": (300_000, "decay"), "n3": (None, "hold")}

    def test_operators_states_are_latched(self) -> None:
        projection = Projection()
        projection.apply(decision(1, "FORCED_OPEN", not_after=None), clock_s=1001, now_ms=0)
        assert projection.entries[0].latched


async def test_owner_removes_a_state_that_its_key_did_not_sign_and_no_other(redis: Redis) -> None:
    signer, other = Signer(Ed25519PrivateKey.generate()), Signer(Ed25519PrivateKey.generate())
    owner = DecisionSink(redis, "f", now_ms=lambda: 1_000_000, signer=signer)
    await write(DecisionSink(redis, "f", now_ms=lambda: 1_000_000, signer=other), [entry("n9")], (1, 99, 1))
    with pytest.raises(Fenced):
        await write(owner, [entry()])
    assert await owner.clear_forged("p")
    await owner.heartbeat("p")
    assert (await head(redis)).version == V1
    assert not await owner.clear_forged("p"), "our own is none"
    await write(DecisionSink(redis, "f", now_ms=lambda: 1_000_000, signer=signer), [], (1, 6, 1))
    with pytest.raises(Fenced):
        await owner.heartbeat("p")
    assert not await owner.clear_forged("p"), "a genuine newer judge stays"
    assert (await head(redis)).version == (1, 6, 1)


async def test_without_a_signer_nothing_is_removed(redis: Redis) -> None:
    await write(new_sink(redis), [], (1, 99, 1))
    assert not await new_sink(redis).clear_forged("p")
    assert (await head(redis)).version == (1, 99, 1)
