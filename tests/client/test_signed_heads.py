"""Signed heads: what somebody who may write to Redis can do to a host that trusts keys alone (attacks as TUF lists them)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from redis.asyncio import Redis
from slodrift_client import BreakerClient, Limits
from slodrift_client.contract import Refused
from slodrift_client.signature import HeadKeys
from slodrift_client.view import STALE_S, PoolView

from schemas.contract import Entry, build, encode
from schemas.redis_keys import PoolKeys
from schemas.signing import Signer
from sinks.redis_decisions import DecisionSink
from streams.embedded.redis_server import RedisServer

FLEET, POOL = "prod", "llama3-70b/eu/h100"
NOW_MS = 1_800_000_000_000


class Key:
    """A key pair."""

    def __init__(self) -> None:
        private = Ed25519PrivateKey.generate()
        self.signer = Signer(private)
        self.pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


CURRENT, NEXT, STRANGER = Key(), Key(), Key()


def state(
    key: Key | None,
    seq: int,
    *,
    hb: int = 0,
    epoch: int = 1,
    gen: int = 1,
    pool: str = POOL,
    fleet: str = FLEET,
    open_: str | None = None,
) -> tuple[bytes, bytes]:
    entries = []
    if open_ is not None:
        entries = [
            Entry(
                scope="node",
                subject=open_,
                state="OPEN",
                version=(gen, epoch, seq),
                tx="t",
                opened_ms=NOW_MS,
                not_after_ms=NOW_MS + 60_000,
            )
        ]
    head, snapshot = build(
        fleet=fleet, pool=pool, version=(gen, epoch, seq), entries=entries, n_eligible=20, cap=2, mode="enforce",
        issued_ms=NOW_MS, hb=hb,
    )  # fmt: skip
    raw = encode(head)
    return (raw if key is None else key.signer.sign("slodrift-head-v1", raw)), snapshot


def host(*keys: Key) -> PoolView:
    return PoolView(FLEET, POOL, Limits(), rng=random.Random(1), keys=HeadKeys([key.pem for key in keys]))


def refusal(view: PoolView, pair: tuple[bytes, bytes], now: float = 1.0) -> str:
    """Why it is not taken, "" when it is; nothing may have changed when it is not."""
    before = (view.head, dict(view.held), view.age_s(now))
    try:
        view.offer_head(pair[0], now)
        view.offer(*pair, now)
    except Refused as refused:
        assert (view.head, dict(view.held), view.age_s(now)) == before
        return refused.reason
    return ""


def test_a_signed_state_is_obeyed_and_an_unsigned_one_is_not() -> None:
    view = host(CURRENT)
    assert refusal(view, state(None, 1, open_="gpu-1")) == "unsigned"
    assert refusal(view, state(CURRENT, 1, open_="gpu-1")) == ""
    assert view.held["gpu-1"].state_at(1.0) == "OPEN"


def test_s4_forged_heads_and_snapshots() -> None:
    view = host(CURRENT, NEXT)
    good = state(CURRENT, 5)
    assert refusal(view, good) == ""
    assert refusal(view, state(STRANGER, 6, open_="gpu-1")) == "unknown_key"
    signed, snapshot = state(CURRENT, 6, open_="gpu-1")
    assert refusal(view, (signed, good[1])) == "mismatch"  # the snapshot is bound by length and digest
    assert refusal(view, (signed[:-1] + b" }", snapshot)) == "unsigned"
    assert refusal(view, (signed + b"\n", snapshot)) == "unsigned"
    assert (
        refusal(view, (signed.replace(CURRENT.signer.key_id.encode(), NEXT.signer.key_id.encode()), snapshot)) == "bad_signature"
    )
    other = CURRENT.signer.sign("slodrift-anchor-v1", signed[: signed.rindex(b',"key_id"')] + b"}")
    assert refusal(view, (other, snapshot)) == "bad_signature"  # signed as another kind of object
    forged = state(None, 7, open_="gpu-1")[0]
    assert refusal(view, (forged[:-1] + signed[signed.rindex(b',"key_id"') :], snapshot)) == "bad_signature"
    twice = signed[:-2] + b'","seq":9' + signed[signed.rindex(b',"key_id"') :]
    assert refusal(view, (twice, snapshot)) == "bad_signature"
    assert view.head is not None
    assert view.head.version == (1, 1, 5)


def test_every_bit_of_a_signed_head_counts() -> None:
    signed, snapshot = state(CURRENT, 6, open_="gpu-1")
    rng = random.Random(3)
    for _ in range(300):
        at, bit = rng.randrange(len(signed) - 3), rng.randrange(8)  # the last base64 character has bits without meaning
        flipped = bytearray(signed)
        flipped[at] ^= 1 << bit
        assert refusal(host(CURRENT), (bytes(flipped), snapshot)) in ("unsigned", "unknown_key", "bad_signature")


def test_s5_rollback_to_an_older_signed_head() -> None:
    view, old = host(CURRENT), state(CURRENT, 5, open_="gpu-1")
    assert refusal(view, old) == ""
    assert refusal(view, state(CURRENT, 6)) == ""
    assert refusal(view, old) == "rollback"
    assert refusal(view, state(CURRENT, 6, hb=3)) == ""
    assert refusal(view, state(CURRENT, 6, hb=2)) == "rollback"


def test_s6_a_frozen_head_grows_stale() -> None:
    view, frozen = host(CURRENT), state(CURRENT, 5)
    assert refusal(view, frozen, 0.0) == ""
    for second in range(1, 12):
        assert refusal(view, frozen, float(second)) == ""
    assert view.source(STALE_S - 0.1) == "late"
    assert view.source(STALE_S + 0.1) == "stale"


def test_s7_another_pools_state() -> None:
    assert refusal(host(CURRENT), state(CURRENT, 5, pool="another", open_="gpu-1")) == "foreign"
    assert refusal(host(CURRENT), state(CURRENT, 5, fleet="staging", open_="gpu-1")) == "foreign"


def test_rotation_and_s8_fast_forward_with_the_old_key() -> None:
    view = host(CURRENT, NEXT)
    assert refusal(view, state(CURRENT, 2**40, epoch=2**40, gen=2**30)) == ""  # the stolen key says: far ahead
    assert refusal(view, state(CURRENT, 6)) == "rollback"
    assert refusal(view, state(NEXT, 6)) == ""  # the ratchet is each key's own, so the next key recovers it
    assert refusal(view, state(NEXT, 7, open_="gpu-1")) == ""
    assert refusal(view, state(CURRENT, 2**41, gen=2**31)) == "rollback"  # and the old key is over
    assert refusal(view, state(NEXT, 7, hb=1, open_="gpu-1")) == ""


def test_rotation_in_the_midst_of_a_state() -> None:
    view = host(CURRENT, NEXT)
    assert refusal(view, state(CURRENT, 6, hb=4, open_="gpu-1")) == ""
    assert view.offer_head(state(NEXT, 6, hb=5, open_="gpu-1")[0], 2.0) is False  # no need to read the snapshot again
    assert view.age_s(2.0) == 0.0
    with pytest.raises(Refused, match="rollback"):
        view.offer_head(state(CURRENT, 6, hb=6, open_="gpu-1")[0], 3.0)


def test_s9_a_revoked_key() -> None:
    view = host(NEXT)
    assert refusal(view, state(CURRENT, 9, open_="gpu-1")) == "unknown_key"
    assert view.head is None


def test_keys_must_be_ed25519() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    weak = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for keys in ([], [weak], [b"no key"], CURRENT.pem):
        with pytest.raises(ValueError, match=r"."):
            HeadKeys(keys)  # type: ignore[arg-type]


async def test_judge_signs_and_host_verifies_over_redis(
    redis_server: RedisServer, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """An administrator of Redis who forges everything is not obeyed, and is noticed."""
    (tmp_path / "key.pub").write_bytes(CURRENT.pem)
    connection = Redis.from_url(redis_server.url)
    await connection.flushall()
    sink = DecisionSink(connection, FLEET, signer=CURRENT.signer)
    await sink.setup()
    now = sink.now_ms()
    entry = Entry(
        scope="node", subject="gpu-1", state="OPEN", version=(1, 1, 1), tx="t", opened_ms=now, not_after_ms=now + 60_000
    )
    await sink.assert_state(POOL, [entry], version=(1, 1, 1), n_eligible=20, cap=2, mode="enforce")
    await sink.heartbeat(POOL)
    keys, folder = PoolKeys(FLEET, POOL), tmp_path / "state"
    with BreakerClient(redis_server.url, FLEET, [POOL], public_keys=[tmp_path / "key.pub"], state_dir=folder) as client:
        assert client.wait(10)
        assert not client.allow("gpu-1")
        admin = driver.Redis.from_url(redis_server.url)
        head, snapshot = state(None, 9, open_="gpu-2")
        admin.mset({keys.head: head, keys.snap: snapshot})
        admin.publish(keys.doorbell, "9")
        admin.hset(keys.subject("gpu-2"), mapping={"state": "OPEN"})
        wait_until(lambda: client.status().pools[POOL].refused.get("unsigned"), "the forgery is refused")
        assert client.allow("gpu-2")
        assert not client.allow("gpu-1")
        assert client.status().degraded
    # a start without Redis: the file is verified like anything else
    for trusted, allowed in ((CURRENT, False), (NEXT, True)):
        with BreakerClient("redis://127.0.0.1:1/0", FLEET, [POOL], public_keys=[trusted.pem], state_dir=folder) as client:
            assert client.allow("gpu-1") is allowed
    await connection.aclose()
