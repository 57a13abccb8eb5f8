from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.contract import (
    MAX_AHEAD_MS,
    MAX_ENTRIES,
    Entry,
    Probe,
    build,
    decode_head,
    decode_snapshot,
    encode,
    is_capped,
)
from schemas.errors import SchemaError
from schemas.redis_keys import PoolKeys

NOW_MS = 1_800_000_000_000


def entry(subject: str = "gpu-1", **fields: Any) -> Entry:
    return Entry(**{
        "scope": "node", "subject": subject, "state": "OPEN", "version": (1, 2, 3), "tx": "t", "opened_ms": NOW_MS,
        "not_after_ms": NOW_MS + 30_000, **fields,
    })  # fmt: skip


def state(entries: list[Entry], **fields: Any) -> Any:
    return build(**{
        "fleet": "f", "pool": "p", "version": (1, 2, 3), "entries": entries, "n_eligible": 100, "cap": 10, "mode": "enforce",
        "issued_ms": NOW_MS, **fields,
    })  # fmt: skip


names = st.text(min_size=1, max_size=30)
entries = st.lists(
    st.builds(
        entry,
        names,
        state=st.sampled_from(["OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]),
        not_after_ms=st.integers(NOW_MS, NOW_MS + MAX_AHEAD_MS),
        reason=st.text(max_size=100),
        admit_ratio=st.floats(0, 1),
        probe=st.none() | st.builds(Probe, hosts=st.integers(1, 9)),
    ),
    max_size=10,
    unique_by=lambda e: e.subject,
)


@given(entries, st.randoms())
def test_equal_states_are_equal_bytes_and_come_back(listed: list[Entry], rng: Any) -> None:
    head, raw = state(listed)
    shuffled = listed.copy()
    rng.shuffle(shuffled)
    assert state(shuffled) == (head, raw)
    assert decode_head(encode(head)) == head
    assert sorted(decode_snapshot(raw).entries, key=lambda e: e.subject) == sorted(listed, key=lambda e: e.subject)
    assert head.n_nonclosed == len(listed)
    assert (head.snap_len, head.snap_sha256) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_json_is_canonical() -> None:
    _, raw = state([entry()])
    text = raw.decode()
    keys = list(msgspec.json.decode(raw)["entries"][0])
    assert keys == sorted(keys)
    assert ": " not in text
    assert ", " not in text


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ([entry(state="CLOSED")], "closed"),
        ([entry(not_after_ms=None)], "only a latched entry"),
        ([entry(not_after_ms=NOW_MS + MAX_AHEAD_MS + 1)], "300 s"),
        ([entry(), entry(scope="session")], "twice"),
        ([entry(admit_ratio=1.5)], "admit_ratio"),
        ([entry("x" * 257)], "subject"),
        ([entry(f"n{i}") for i in range(MAX_ENTRIES + 1)], "bytes|count"),
        ([entry(f"n{i}", reason="r" * 500) for i in range(3000)], "bytes"),
    ],
)
def test_state_outside_the_bounds_is_never_written(listed: list[Entry], why: str) -> None:
    with pytest.raises((ValueError, SchemaError), match=why):
        state(listed)


def test_latched_entry_may_have_no_end() -> None:
    head, _ = state([entry(latched=True, not_after_ms=None)])
    assert head.n_nonclosed == 1


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, True), ({"state": "HALF_OPEN"}, True), ({"state": "FORCED_OPEN"}, False), ({"latched": True}, False),
        ({"scope": "session"}, False), ({"state": "DISABLED"}, False),
    ],
)  # fmt: skip
def test_cap_counts_nodes_that_automation_took_away(fields: dict[str, Any], counted: bool) -> None:
    assert is_capped(entry(**fields)) is counted


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b"\xff", b"{}" * 2000, b'{"schema":2}'])
def test_rubbish_is_a_schema_error(raw: bytes) -> None:
    with pytest.raises(SchemaError, match="bad_head"):
        decode_head(raw)
    with pytest.raises(SchemaError, match="bad_snapshot"):
        decode_snapshot(raw)


def test_snapshot_of_another_schema_or_count_is_an_error() -> None:
    _, raw = state([entry()])
    for old, new in ((b'"schema":1', b'"schema":2'), (b'"count":1', b'"count":2'), (b'"complete":true', b'"complete":false')):
        with pytest.raises(SchemaError, match="bad_snapshot"):
            decode_snapshot(raw.replace(old, new))


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_hash_tag_is_one_slot_and_unambiguous(pool: str, other: str) -> None:
    keys = PoolKeys("f", pool)
    assert keys.head.startswith("{slodrift:f:")
    assert keys.head.index("}") == keys.head.rindex("}")
    assert keys.head.count("{") == 1
    assert {k.partition("}")[0] for k in (keys.head, keys.snap, keys.log, keys.doorbell, keys.subject(other))} == {keys.tag[:-1]}
    if pool != other:
        assert PoolKeys("f", other).head != keys.head


def test_ordinary_names_stay_readable() -> None:
    keys = PoolKeys("prod", "llama3-70b/eu/h100")
    assert keys.head == "{slodrift:prod:llama3-70b/eu/h100}:head"
    assert keys.subject("gpu-017") == "{slodrift:prod:llama3-70b/eu/h100}:d:gpu-017"
