"""The function library on a real server: order, caps, log and expiry are decided in one atomic step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from schemas.contract import LIBRARY_VERSION, Entry, build, encode
from schemas.errors import ConfigError
from schemas.redis_keys import PoolKeys
from sinks.redis_library import check_library, ensure_library, load_library

pytestmark = pytest.mark.embedded

KEYS = PoolKeys("f", "p")


@pytest.fixture(autouse=True)
async def library(redis: Redis) -> None:
    await load_library(redis)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def node(i: int, **fields: Any) -> Entry:
    return Entry(**{
        "scope": "node", "subject": f"n{i}", "state": "OPEN", "version": (1, 2, i), "tx": f"t{i}", "opened_ms": 1_800_000_000_000,
        "not_after_ms": now_ms() + 30_000, **fields,
    })  # fmt: skip


async def call(
    redis: Redis, version: tuple[int, int, int], hb: int = 0, entries: list[Entry] | None = None, *, cap: int = 10,
    log: list[tuple[str, str]] | None = None, gone: list[str] | None = None, **fields: Any,
) -> list[str]:  # fmt: skip
    head, raw = build(
        fleet="f", pool="p", version=version, hb=hb, entries=entries or [], n_eligible=100, cap=cap, mode="enforce",
        issued_ms=fields.pop("issued_ms", 1_800_000_000_000 if not entries else now_ms()),
    )  # fmt: skip
    return await raw_call(redis, encode(head), raw, sorted(e.subject for e in entries or []), log or [], gone or [])


async def raw_call(
    redis: Redis,
    head: bytes,
    raw: bytes,
    subjects: list[str],
    log: Sequence[tuple[str, str]] = (),
    gone: Sequence[str] = (),
) -> list[str]:
    keys = [KEYS.head, KEYS.snap, KEYS.log, *map(KEYS.subject, (*subjects, *gone))]
    reply = await redis.fcall("slodrift_assert", len(keys), *keys, head, raw, KEYS.doorbell, *(x for pair in log for x in pair))
    return [part.decode() for part in reply]


async def stored(redis: Redis) -> str:
    return (await redis.get(KEYS.head) or b"").decode()


async def ids(redis: Redis) -> list[str]:
    return [i.decode() for i, _ in await redis.xrange(KEYS.log)]


async def test_version_is_what_the_contract_needs(redis: Redis) -> None:
    assert await redis.fcall_ro("slodrift_version", 0) == LIBRARY_VERSION
    await check_library(redis)


async def test_missing_library_says_what_to_do_and_is_loaded_when_allowed(redis: Redis) -> None:
    await redis.function_delete("slodrift")
    with pytest.raises(ConfigError, match="slodrift migrate"):
        await check_library(redis)
    await ensure_library(redis)
    await check_library(redis)


async def test_library_of_another_version_is_named(redis: Redis) -> None:
    function = "function_name='slodrift_version', callback=function() return 99 end, flags={'no-writes'}"
    await redis.function_load(f"#!lua name=slodrift\nredis.register_function{{{function}}}", replace=True)
    with pytest.raises(ConfigError, match="version 99"):
        await check_library(redis)


async def test_lower_is_refused_equal_is_a_retry_higher_is_taken(redis: Redis) -> None:
    assert await call(redis, (1, 5, 3), 2) == ["OK"]
    before = await stored(redis)
    for lower in ((1, 5, 3, 1), (1, 5, 2, 9), (1, 4, 9, 9), (0, 9, 9, 9)):
        assert await call(redis, lower[:3], lower[3]) == ["STALE", "1-5-3-2"]
    assert await call(redis, (1, 5, 3), 2) == ["SAME"]
    assert await stored(redis) == before
    for higher in ((1, 5, 3, 3), (1, 5, 4, 0), (1, 6, 0, 0), (2, 0, 0, 0)):
        assert await call(redis, higher[:3], higher[3]) == ["OK"]


async def test_two_states_of_one_version_are_a_conflict(redis: Redis) -> None:
    assert await call(redis, (1, 5, 3), 2, [node(1)]) == ["OK"]
    assert (await call(redis, (1, 5, 3), 2, [node(2)]))[0] == "CONFLICT"
    assert (await call(redis, (1, 5, 3), 3, [node(2)]))[0] == "CONFLICT"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=8))
async def test_the_stored_order_never_goes_back(redis: Redis, writes: list[tuple[int, int, int, int]]) -> None:
    await redis.delete(KEYS.head, KEYS.snap, KEYS.log)
    highest = (-1, -1, -1, -1)
    for write in writes:
        (answer, *_) = await call(redis, write[:3], write[3])
        assert answer == ("OK" if write > highest else "SAME" if write == highest else "STALE")
        highest = max(highest, write)


async def test_expired_head_does_not_let_an_old_judge_in(redis: Redis) -> None:
    await call(redis, (1, 5, 3), 0)
    await redis.delete(KEYS.head)
    assert await call(redis, (1, 4, 9), 0) == ["STALE", "1-5-3"]
    assert await call(redis, (1, 5, 2), 9) == ["STALE", "1-5-3"]
    assert await call(redis, (1, 5, 3), 1) == ["OK"]


async def test_higher_generation_starts_the_log_again(redis: Redis) -> None:
    await call(redis, (1, 500, 3))
    assert await call(redis, (2, 7, 1)) == ["OK"]
    assert await ids(redis) == ["7-1"]
    assert (await call(redis, (1, 501, 1)))[0] == "STALE"


async def test_numbers_as_large_as_kafka_offsets_compare_exactly(redis: Redis) -> None:
    big = 1 << 52
    assert await call(redis, (1, big, big - 1)) == ["OK"]
    assert await call(redis, (1, big, big - 2)) == ["STALE", f"1-{big}-{big - 1}-0"]
    assert await call(redis, (1, big, big)) == ["OK"]
    assert await ids(redis) == [f"{big}-{big - 1}", f"{big}-{big}"]


async def test_log_has_one_record_per_decision_and_none_per_heartbeat(redis: Redis) -> None:
    await call(redis, (1, 5, 2), 0, log=[("5-1", "a"), ("5-2", "b")])
    await call(redis, (1, 5, 2), 1)
    await call(redis, (1, 5, 4), 0, log=[("5-2", "b"), ("5-3", "c"), ("5-4", "d")])
    records = [(i.decode(), f[b"decision"].decode(), f[b"prev"].decode()) for i, f in await redis.xrange(KEYS.log)]
    assert records == [("5-1", "a", ""), ("5-2", "b", "5-1"), ("5-3", "c", "5-2"), ("5-4", "d", "5-3")]


async def test_cap_is_checked_after_the_action(redis: Redis) -> None:
    assert await call(redis, (1, 5, 1), 0, [node(1), node(2)], cap=2) == ["OK"]
    assert await call(redis, (1, 5, 2), 0, [node(1), node(2), node(3)], cap=2) == ["OVER_CAP", "3", "2"]
    assert '"seq":1' in await stored(redis)
    latched = [node(i, latched=True) for i in (3, 4)]
    others = [node(5, scope="session"), node(6, state="DISABLED"), node(7, state="FORCED_OPEN", latched=True)]
    assert await call(redis, (1, 5, 2), 0, [node(1), node(2), *latched, *others], cap=2) == ["OK"]


async def test_cap_that_shrank_delays_no_close(redis: Redis) -> None:
    nodes = [node(i) for i in range(4)]
    assert await call(redis, (1, 5, 1), 0, nodes, cap=4) == ["OK"]
    assert await call(redis, (1, 5, 1), 1, nodes, cap=1) == ["OK"]
    half = [node(0, state="HALF_OPEN"), *nodes[1:]]
    assert await call(redis, (1, 5, 2), 0, half, cap=1) == ["OK"]
    assert await call(redis, (1, 5, 3), 0, half[1:], cap=1) == ["OK"]
    assert (await call(redis, (1, 5, 4), 0, [*half[2:], node(9)], cap=1))[0] == "OVER_CAP"
    assert await call(redis, (1, 5, 4), 0, [], cap=0) == ["OK"]


async def test_after_a_loss_a_cap_that_shrank_delays_no_close(redis: Redis) -> None:
    nodes = [node(i) for i in range(4)]
    assert await call(redis, (1, 5, 1), 0, nodes, cap=4) == ["OK"]
    await redis.delete(KEYS.head, KEYS.snap)
    assert await call(redis, (1, 5, 2), 0, nodes[1:], cap=1) == ["OK"]
    assert (await call(redis, (1, 5, 3), 0, [*nodes[2:], node(9)], cap=1))[0] == "OVER_CAP"


async def test_subject_hashes_follow_the_state(redis: Redis) -> None:
    await call(redis, (1, 5, 1), 0, [node(1), node(2, latched=True, not_after_ms=None)])
    one = await redis.hgetall(KEYS.subject("n1"))
    assert (one[b"state"], one[b"version"], one[b"mode"]) == (b"OPEN", b"1-2-1", b"enforce")
    assert 80_000 < await redis.pttl(KEYS.subject("n1")) <= 90_000
    assert 3_500_000 < await redis.pttl(KEYS.subject("n2")) <= 3_600_000
    await call(redis, (1, 5, 2), 0, [node(2, state="FORCED_OPEN", latched=True)], gone=["n1"])
    assert await redis.exists(KEYS.subject("n1")) == 0
    assert (await redis.hgetall(KEYS.subject("n2")))[b"state"] == b"FORCED_OPEN"


async def test_head_and_snapshot_expire(redis: Redis) -> None:
    await call(redis, (1, 5, 1))
    assert 55_000 < await redis.pttl(KEYS.head) <= 60_000
    assert 3_500_000 < await redis.pttl(KEYS.snap) <= 3_600_000
    assert await redis.pttl(KEYS.log) == -1


async def test_doorbell_rings_for_changes_only(redis: Redis) -> None:
    async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(KEYS.doorbell)
        await pubsub.get_message(timeout=5)
        await call(redis, (1, 5, 1))
        await call(redis, (1, 5, 1), 1)
        await call(redis, (1, 4, 1), 9)
        await call(redis, (1, 5, 2))
        heard = []
        while len(heard) < 2 and (message := await pubsub.get_message(timeout=5)) is not None:
            heard.append(message["data"])
        assert heard == [b"1-5-1-0", b"1-5-2-0"]
        assert await pubsub.get_message(timeout=0) is None


async def test_flush_is_healed_by_the_next_heartbeat(redis: Redis) -> None:
    nodes = [node(1)]
    await call(redis, (1, 5, 1), 0, nodes)
    before = {key: await redis.dump(key) for key in await redis.keys("*:snap")}
    await redis.flushall()
    assert await call(redis, (1, 5, 1), 1, nodes) == ["OK"]
    assert {key: await redis.dump(key) for key in await redis.keys("*:snap")} == before
    assert await redis.exists(KEYS.subject("n1")) == 1


async def test_keys_of_a_wrong_type_are_replaced(redis: Redis) -> None:
    await redis.hset(KEYS.head, "x", "y")
    await redis.rpush(KEYS.snap, "x")
    await redis.set(KEYS.log, "x")
    await redis.set(KEYS.subject("n1"), "x")
    assert await call(redis, (1, 5, 1), 0, [node(1)]) == ["OK"]
    assert '"epoch":5' in await stored(redis)
    assert (await redis.hgetall(KEYS.subject("n1")))[b"state"] == b"OPEN"


@pytest.mark.parametrize("head", ["", "{", "null", "[]", "7", "{}", '{"gen":1,"epoch":"5","seq":1,"hb":0}', "x" * 3000])
async def test_forged_stored_head_is_replaced(redis: Redis, head: str) -> None:
    await redis.set(KEYS.head, head)
    assert await call(redis, (1, 5, 1)) == ["OK"]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda h, s: (h.replace(b'"hb":0', b'"hb":"0"'), s), "head"),
        (lambda h, s: (h.replace(b'"mode":"enforce"', b'"mode":7'), s), "head"),
        (lambda h, s: (b"x", s), "head"),
        (lambda h, s: (h + b" " * 3000, s), "too long"),
        (lambda h, s: (h, s + b" " * 1_100_000), "too long"),
        (lambda h, s: (h, b"[]"), "snapshot"),
        (lambda h, s: (h, s.replace(b'"entries"', b'"none"')), "snapshot"),
        (lambda h, s: (h.replace(b'"n_nonclosed":1', b'"n_nonclosed":2'), s), "snapshot"),
        (lambda h, s: (h, s.replace(b'"tx":"t1"', b'"tx":null')), "entry"),
        (lambda h, s: (h, s.replace(b'"version":[1,2,1]', b'"version":[1,2]')), "entry"),
    ],
)
async def test_malformed_write_changes_nothing(redis: Redis, change: Any, answer: str) -> None:
    head, raw = build(
        fleet="f", pool="p", version=(1, 5, 1), entries=[node(1)], n_eligible=100, cap=10, mode="enforce", issued_ms=now_ms()
    )
    assert await raw_call(redis, *change(encode(head), raw), ["n1"]) == ["BAD", answer]
    assert await redis.keys("*") == []


async def test_subject_without_a_key_is_refused(redis: Redis) -> None:
    head, raw = build(
        fleet="f", pool="p", version=(1, 5, 1), entries=[node(1)], n_eligible=100, cap=10, mode="enforce", issued_ms=now_ms()
    )
    assert await raw_call(redis, encode(head), raw, []) == ["BAD", "a subject has no key"]
