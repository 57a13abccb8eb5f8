"""Every way to tamper with an audit file is noticed and named; honest files pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.audit import Anchor, Chain, pool_of, sign_anchor
from schemas.results import Decision, encode_line
from schemas.signing import Keyring, Signer
from sinks.audit_verify import Verified, verify_lines

FLEET = "prod"
PRIVATE, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SIGNER, KEYS = Signer(PRIVATE), Keyring([PRIVATE.public_key()])
POOLS = ("a/eu", "b/us")


def decision(pool: str, seq: int) -> bytes:
    return encode_line(
        Decision(
            t=1000.0 + seq,
            pool=pool,
            scope="node",
            subject=f"gpu-{seq % 7}",
            state="OPEN",
            version=(1, 2, seq),
            tx=f"{pool}-{seq}",
        )
    )


def audit(n: int = 20, every: int = 5) -> list[bytes]:
    """Two pools by turns, `n` decisions each; an anchor after every fifth of a pool."""
    chains, lines = {pool: Chain(FLEET, pool) for pool in POOLS}, []
    for seq in range(1, n + 1):
        for partition, pool in enumerate(POOLS):
            lines.append(chains[pool].append(partition, 3 * seq, decision(pool, seq)))
            if seq % every == 0:
                lines.append(sign_anchor(chains[pool].anchor(1000 * seq), SIGNER))
    return lines


def verify(lines: list[bytes], anchors: list[bytes] | None = None) -> Verified:
    return verify_lines(lines, FLEET, KEYS, anchors or [])


def kinds(lines: list[bytes], anchors: list[bytes] | None = None) -> set[str]:
    return {fault.kind for fault in verify(lines, anchors).faults}


def entry_at(lines: list[bytes], n: int, pool: str = POOLS[0]) -> int:
    return next(
        i for i, line in enumerate(lines) if (d := json.loads(line))["kind"] == "audit_entry" and (d["pool"], d["n"]) == (pool, n)
    )


def is_anchor(line: bytes) -> bool:
    return b'"kind":"audit_anchor"' in line


def test_an_honest_file_passes_and_so_does_every_prefix_with_an_anchor() -> None:
    lines = audit()
    result = verify(lines)
    assert result.faults == []
    assert {pool: (p.entries, p.anchored) for pool, p in result.pools.items()} == dict.fromkeys(POOLS, (20, 20))
    for cut in range(1, len(lines)):
        assert kinds(lines[:cut]) <= {"unanchored"}
        if cut > 12:
            assert kinds(lines[:cut]) == set()


def rehash(lines: list[bytes], first: int, pool: str, edit: Callable[[int, bytes], bytes | None]) -> list[bytes]:
    """What an owner of the file without the key does: changes decisions and computes all hashes from there on anew."""
    chain, out = Chain(FLEET, pool), []
    for line in lines:
        record = json.loads(line)
        if record["pool"] != pool or record["kind"] != "audit_entry":
            out.append(line)
            continue
        raw = line[line.index(b'"decision":') + 11 : -1]
        new = edit(record["n"], raw) if record["n"] >= first else raw
        if new is not None:
            out.append(chain.append(record["partition"], record["offset"], new))
    return out


def test_changed() -> None:
    lines = audit()
    i = entry_at(lines, 7)
    lines[i] = lines[i].replace(b'"state":"OPEN"', b'"state":"CLOSED"')
    (fault,) = verify(lines).faults
    assert (fault.kind, fault.pool, fault.n) == ("changed", POOLS[0], 7)


def test_changed_with_its_own_hash_made_anew() -> None:
    lines = audit()
    new = rehash(lines, 7, POOLS[0], lambda n, raw: raw.replace(b"OPEN", b"CLOSED") if n == 7 else raw)
    lines[entry_at(lines, 7)] = new[entry_at(new, 7)]
    (fault,) = verify(lines).faults
    assert (fault.kind, fault.n) == ("changed", 7)


def test_removed() -> None:
    lines = audit()
    for n in (7, 8, 15):
        del lines[entry_at(lines, n)]
    assert [(f.kind, f.n) for f in verify(lines).faults] == [("removed", 7), ("removed", 8), ("removed", 15)]


def test_inserted() -> None:
    lines = audit()
    chain = Chain(FLEET, POOLS[0], 6, json.loads(lines[entry_at(lines, 6)])["hash"])
    lines.insert(entry_at(lines, 7), chain.append(0, 19, decision(POOLS[0], 99)))
    assert [(f.kind, f.n) for f in verify(lines).faults] == [("inserted", 7)]
    lines = audit()
    lines.insert(entry_at(lines, 15), lines[entry_at(lines, 3)])
    assert [(f.kind, f.n) for f in verify(lines).faults] == [("inserted", 3)]


def test_reordered() -> None:
    lines = audit()
    i, j = entry_at(lines, 7), entry_at(lines, 9)
    lines[i], lines[j] = lines[j], lines[i]
    assert {f.kind for f in verify(lines).faults} == {"reordered"}


def test_truncated() -> None:
    whole = audit()
    cut = [line for line in whole if is_anchor(line)] + [line for line in whole[:20] if not is_anchor(line)]
    assert kinds(cut) == {"truncated"}
    # anchors and all are cut: nothing in the file says so, a copy of an anchor does
    assert kinds(whole[:24]) == set()
    assert kinds(whole[:24], [whole[-1], whole[-3]]) == {"truncated"}
    assert kinds([], [whole[-1]]) == {"truncated"}


def test_forked() -> None:
    lines = audit()
    forged = rehash(lines, 7, POOLS[0], lambda n, raw: raw.replace(b"OPEN", b"CLOSED"))
    assert kinds(forged) == {"anchor_mismatch"}  # all hashes fit together, the anchors do not
    other = Chain(FLEET, POOLS[0], 5, "0" * 64)
    assert kinds([*lines, sign_anchor(other.anchor(1), SIGNER)]) == {"forked"}  # two anchors of one place
    tail = audit(22)
    chain = Chain(FLEET, POOLS[0], 20, json.loads(tail[entry_at(tail, 20)])["hash"])
    assert kinds([*tail, chain.append(0, 70, decision(POOLS[0], 98))]) == {"forked"}  # two ends behind the last anchor


def test_a_wholly_removed_beginning_and_rehash() -> None:
    lines = audit()
    assert kinds(rehash(lines, 1, POOLS[0], lambda n, raw: None if n == 4 else raw)) & {"anchor_mismatch", "truncated"}


def test_anchors_are_not_believed_unsigned() -> None:
    lines = audit()
    forged = rehash(lines, 7, POOLS[0], lambda n, raw: raw.replace(b"OPEN", b"CLOSED"))
    end = json.loads(forged[entry_at(forged, 20)])
    anchor = Anchor(fleet=FLEET, pool=POOLS[0], n=20, hash=end["hash"], t_ms=1)
    stranger = sign_anchor(anchor, Signer(STRANGER))
    honest = [line for line in forged if not (is_anchor(line) and json.loads(line)["pool"] == POOLS[0])]
    assert kinds([*honest, stranger]) == {"bad_anchor", "unanchored"}
    assert kinds(honest) == {"unanchored"}
    elsewhere = sign_anchor(Anchor(fleet="staging", pool=POOLS[0], n=20, hash=end["hash"], t_ms=1), SIGNER)
    assert "bad_anchor" in kinds([*honest, elsewhere])
    moved = [line.replace(b'"pool":"a/eu"', b'"pool":"b/us"', 1) if is_anchor(line) else line for line in lines]
    assert "bad_anchor" in kinds(moved)


LINES = audit(12, 4)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**31))
def test_every_single_bit_of_the_file_counts(seed: int) -> None:
    rng = random.Random(seed)
    lines = list(LINES)
    i = rng.randrange(len(lines))
    flipped = bytearray(lines[i])
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    lines[i] = bytes(flipped)
    assert verify(lines).faults


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_tampering_is_named(data: st.DataObject) -> None:
    """One mutation of one pool's anchored part, of a kind drawn by chance."""
    lines = list(LINES)
    places = [entry_at(lines, n) for n in range(1, 13)]
    a, b = sorted(data.draw(st.lists(st.sampled_from(range(12)), min_size=2, max_size=2, unique=True)))
    kind = data.draw(st.sampled_from(["changed", "removed", "inserted", "reordered", "truncated", "anchor_mismatch"]))
    if kind == "changed":
        lines[places[a]] = lines[places[a]].replace(b"gpu-", b"cpu-")
    elif kind == "removed":
        for i in reversed(places[a:b]):
            del lines[i]
    elif kind == "inserted":
        lines.insert(places[b], lines[places[a]])
    elif kind == "reordered":
        line = lines.pop(places[b])
        lines.insert(places[a], line)
    elif kind == "truncated":
        lines = [line for i, line in enumerate(lines) if i not in places[b:]]
    else:
        lines = rehash(lines, a + 1, POOLS[0], lambda n, raw: raw.replace(b"OPEN", b"CLOSED") if n == a + 1 else raw)
    faults = verify(lines).faults
    assert {fault.kind for fault in faults} == {kind}
    assert {fault.pool for fault in faults} == {POOLS[0]}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(LINES)), max_size=40), st.randoms())
def test_nothing_in_a_file_raises(junk: list[bytes], rng: random.Random) -> None:
    lines = [*junk, *rng.sample(LINES, 10)]
    rng.shuffle(lines)
    verify(lines)


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b'{"kind":"epoch","generation":1,"writer":"w"}', b'{"kind":"decision"}', b'{"kind":"decision",\n"pool":"p"}'],
)
def test_what_is_no_decision_is_not_chained(raw: bytes) -> None:
    assert pool_of(raw) is None


def test_decisions_are() -> None:
    assert pool_of(decision("a/eu", 1)) == "a/eu"
