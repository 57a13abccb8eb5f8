"""Both sides of the wire: what the pipeline writes the client reads, and what nobody should have written it refuses."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slodrift_client import contract as reader
from slodrift_client.contract import Keys, Refused, parse_head, parse_snapshot
from slodrift_client.view import Limits, PoolView

from schemas import contract as writer
from schemas.redis_keys import PoolKeys
from schemas.scopes import scope_of

NOW_MS = 1_800_000_000_000
names = st.text(min_size=1, max_size=30)


def entry(subject: str = "n1", **fields: Any) -> writer.Entry:
    return writer.Entry(**{
        "scope": "node", "subject": subject, "state": "OPEN", "version": (1, 2, 3), "tx": "t", "opened_ms": NOW_MS,
        "not_after_ms": NOW_MS + 30_000, **fields,
    })  # fmt: skip


def state(entries: list[writer.Entry], **fields: Any) -> tuple[bytes, bytes]:
    head, raw = writer.build(**{
        "fleet": "f", "pool": "p", "version": (1, 2, 3), "entries": entries, "n_eligible": 100, "cap": 10, "mode": "enforce",
        "issued_ms": NOW_MS, **fields,
    })  # fmt: skip
    return writer.encode(head), raw


def sealed(snapshot: Any, **head: Any) -> tuple[bytes, bytes]:
    """A head that fits whatever snapshot: what somebody with write access to Redis could make."""
    raw = snapshot if isinstance(snapshot, bytes) else json.dumps(snapshot).encode()
    good = json.loads(state([entry()])[0])
    fields = {**good, "snap_len": max(1, len(raw)), "snap_sha256": hashlib.sha256(raw).hexdigest(), **head}
    return json.dumps(fields).encode(), raw


entries = st.lists(
    st.builds(
        lambda subject, **fields: entry(subject, scope=scope_of(subject), **fields),
        st.builds(str.__add__, st.sampled_from(["", "session:", "request:tenant:", "pool:"]), names),
        state=st.sampled_from(["OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]),
        version=st.tuples(*[st.integers(0, 2**40)] * 3),
        opened_ms=st.integers(0, NOW_MS),
        not_after_ms=st.integers(NOW_MS, NOW_MS + 300_000),
        action=st.sampled_from(["eject", "shed", "fallback", "degrade", "none"]),
        admit_ratio=st.floats(0, 1),
        reason=st.text(max_size=200),
        policy_version=st.text(max_size=20),
        latched=st.booleans(),
        on_stale=st.sampled_from(["decay", "hold"]),
        fallback=st.none() | names,
        probe=st.none()
        | st.builds(writer.Probe, hosts=st.integers(1, 9), per_s=st.floats(0.1, 9), timeout_ms=st.integers(1, 9999)),
    ),
    max_size=10,
    unique_by=lambda e: e.subject,
)


@given(names, names, entries, st.sampled_from(["shadow", "advise", "enforce"]), st.integers(0, 2**40))
def test_what_the_pipeline_writes_the_client_reads(fleet: str, pool: str, listed: list[writer.Entry], mode: Any, hb: int) -> None:
    raw_head, raw = state(listed, fleet=fleet, pool=pool, mode=mode, hb=hb)
    head = parse_head(raw_head, fleet, pool)
    assert (head.version, head.hb, head.mode, head.n_eligible, head.cap) == ((1, 2, 3), hb, mode, 100, 10)
    by_name = {e.subject: e for e in parse_snapshot(raw, head)}
    assert by_name.keys() == {e.subject for e in listed}
    for wrote in listed:
        read = by_name[wrote.subject]
        for name in (
            "scope", "state", "version", "tx", "opened_ms", "not_after_ms", "action", "admit_ratio", "reason", "policy_version",
            "latched", "fallback",
        ):  # fmt: skip
            assert getattr(read, name) == getattr(wrote, name), name
        assert read.hold == (wrote.on_stale == "hold")
        assert read.is_capped == writer.is_capped(wrote)
        if wrote.probe is not None:
            plan = wrote.probe
            assert (read.probe_hosts, read.probe_per_s, read.probe_timeout_s) == (plan.hosts, plan.per_s, plan.timeout_ms / 1000)


@given(names, names)
def test_both_sides_name_the_same_keys(fleet: str, pool: str) -> None:
    ours, theirs = PoolKeys(fleet, pool), Keys(fleet, pool)
    assert (ours.head, ours.snap, ours.doorbell) == (theirs.head, theirs.snap, theirs.doorbell)


def test_both_sides_have_the_same_bounds() -> None:
    for name in ("SCHEMA", "MAX_HEAD_BYTES", "MAX_SNAPSHOT_BYTES", "MAX_ENTRIES", "MAX_AHEAD_MS"):
        assert getattr(reader, name) == getattr(writer, name)


def test_fields_of_a_later_version_are_ignored() -> None:
    raw_head, raw = state([entry()])
    snapshot = json.loads(raw)
    snapshot["entries"][0]["colour"] = "red"
    snapshot["later"] = [1]
    raw_head, raw = sealed(snapshot, signature="x")
    assert len(parse_snapshot(raw, parse_head(raw_head, "f", "p"))) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fleet": "g"}, "foreign"), ({"pool": "q"}, "foreign"), ({"schema": 2}, "foreign"), ({"schema": "1"}, "foreign"),
        ({"gen": -1}, "bad_head"), ({"gen": True}, "bad_head"), ({"epoch": 1.0}, "bad_head"), ({"seq": "3"}, "bad_head"),
        ({"hb": None}, "bad_head"), ({"hb": 1 << 60}, "bad_head"), ({"issued_ms": -1}, "bad_head"),
        ({"mode": "obey"}, "bad_head"), ({"mode": ["enforce"]}, "bad_head"),
        ({"cap": -1}, "bad_head"), ({"n_eligible": 1 << 40}, "bad_head"),
        ({"n_nonclosed": 5000}, "bad_head"), ({"snap_len": 0}, "bad_head"), ({"snap_len": 1 << 30}, "bad_head"),
        ({"snap_sha256": "g" * 64}, "bad_head"), ({"snap_sha256": "a" * 63}, "bad_head"), ({"snap_sha256": "A" * 64}, "bad_head"),
    ],
)  # fmt: skip
def test_head_that_is_wrong_in_one_field_is_refused(change: dict[str, Any], reason: str) -> None:
    good = json.loads(state([])[0])
    parse_head(json.dumps(good).encode(), "f", "p")
    with pytest.raises(Refused) as caught:
        parse_head(json.dumps(good | change).encode(), "f", "p")
    assert caught.value.reason == reason


@pytest.mark.parametrize("field", list(json.loads(state([])[0])))
def test_head_without_a_field_is_refused(field: str) -> None:
    good = json.loads(state([])[0])
    del good[field]
    if field == "lease_ms":  # for people; this reader has its own limits
        parse_head(json.dumps(good).encode(), "f", "p")
        return
    with pytest.raises(Refused):
        parse_head(json.dumps(good).encode(), "f", "p")


def refusal(snapshot: Any, **head: Any) -> str:
    raw_head, raw = sealed(snapshot, **head)
    with pytest.raises(Refused) as caught:
        parse_snapshot(raw, parse_head(raw_head, "f", "p"))
    return caught.value.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"complete": False}, "bad_snapshot"), ({"complete": 1}, "bad_snapshot"), ({"count": 2}, "bad_snapshot"),
        ({"count": None}, "bad_snapshot"), ({"entries": {}}, "bad_snapshot"), ({"entries": []}, "bad_snapshot"),
        ({"entries": [None]}, "bad_snapshot"), ({"entries": [[]]}, "bad_snapshot"), ({"fleet": "g"}, "foreign"),
        ({"pool": "q"}, "foreign"), ({"schema": 2}, "foreign"), ({"version": [1, 2, 2]}, "foreign"),
        ({"version": [1, 2]}, "bad_snapshot"), ({"version": None}, "bad_snapshot"),
    ],
)  # fmt: skip
def test_snapshot_that_is_wrong_in_one_field_is_refused(change: dict[str, Any], reason: str) -> None:
    assert refusal(json.loads(state([entry()])[1]) | change) == reason


@pytest.mark.parametrize(
    "change",
    [
        {"state": "CLOSED"}, {"state": "open"}, {"state": 1}, {"scope": "galaxy"}, {"subject": ""}, {"subject": 5},
        {"subject": "x" * 300}, {"version": [1, -1, 0]}, {"action": "explode"}, {"admit_ratio": 1.1}, {"admit_ratio": True},
        {"admit_ratio": "0"}, {"reason": "x" * 513}, {"latched": 1}, {"on_stale": "for ever"}, {"not_after_ms": None},
        {"not_after_ms": NOW_MS + 300_001}, {"not_after_ms": 1.5}, {"opened_ms": -1}, {"probe": []}, {"probe": {}},
        {"probe": {"hosts": 0, "per_s": 1, "timeout_ms": 1}}, {"probe": {"hosts": 1, "per_s": 0, "timeout_ms": 1}},
        {"fallback": 3}, {"scope": "session"}, {"subject": "pool:"}, {"subject": "session:7"}, {"subject": "request:tenant:a"},
        {"subject": "session:7", "scope": "request"},
    ],
)  # fmt: skip
def test_entry_that_is_wrong_in_one_field_refuses_the_whole_snapshot(change: dict[str, Any]) -> None:
    snapshot = json.loads(state([entry()])[1])
    snapshot["entries"][0] |= change
    assert refusal(snapshot) == "bad_snapshot"


def test_snapshot_of_another_length_than_the_head_says_is_refused() -> None:
    assert refusal(json.loads(state([entry()])[1]), n_nonclosed=2) == "bad_snapshot"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_that_are_no_json_are_refused_even_where_nobody_looks(word: str) -> None:
    raw_head, _ = state([])
    with pytest.raises(Refused, match="not JSON"):
        parse_head(raw_head[:-1] + f',"later":{word}}}'.encode(), "f", "p")


def test_subject_that_occurs_twice_is_refused() -> None:
    snapshot = json.loads(state([entry("n1"), entry("n2")])[1])
    snapshot["entries"][1]["subject"] = "n1"
    assert refusal(snapshot, n_nonclosed=2) == "bad_snapshot"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\0", b"\xff\xfe", b"null", b"[]", b"7", b'"x"', b"{", b"NaN", b'{"gen":NaN}', b'{"gen":-Infinity}',
        b"[" * 100_000, b'{"a":' * 100_000, b'{"gen":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_rubbish_is_refused_without_harm(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_head(raw, "f", "p")
    with pytest.raises(Refused):
        parse_snapshot(raw, parse_head(sealed(raw)[0], "f", "p"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["node", "OPEN", "enforce", "p"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
paths = st.sampled_from(["head", "snapshot", "entry"])


@settings(max_examples=400)
@given(st.lists(st.tuples(paths, st.integers(0, 40), json_values), min_size=1, max_size=3), st.booleans())
def test_hostile_values_anywhere_never_raise_and_never_apply_by_half(changes: list[tuple[str, int, Any]], fits: bool) -> None:
    view = PoolView("f", "p", Limits())
    view.offer(*state([entry("kept")], version=(1, 2, 2)), 0.0)
    raw_head, raw = state([entry("n1"), entry("n2")])
    head, snapshot = json.loads(raw_head), json.loads(raw)
    for where, number, value in changes:
        target = {"head": head, "snapshot": snapshot, "entry": snapshot["entries"][0]}[where] if snapshot.get("entries") else head
        if isinstance(target, dict) and target:
            target[sorted(target)[number % len(target)]] = value
        if not isinstance(snapshot.get("entries"), list) or not all(isinstance(e, dict) for e in snapshot["entries"]):
            snapshot["entries"] = snapshot.get("entries") or []
            break
    raw = json.dumps(snapshot).encode()
    if fits:
        head |= {"snap_len": len(raw), "snap_sha256": hashlib.sha256(raw).hexdigest()}
    try:
        view.offer(json.dumps(head).encode(), raw, 1.0)
    except Refused:
        assert set(view.held) == {"kept"}
        assert view.head is not None
        assert view.head.version == (1, 2, 2)
    else:
        assert len(view.held) == view.head.n_nonclosed  # type: ignore[union-attr]
        assert len(view.held) <= 10


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(raw_head: bytes, raw: bytes) -> None:
    view = PoolView("f", "p", Limits())
    for call in (lambda: view.offer_head(raw_head, 0.0), lambda: view.offer(raw_head, raw, 0.0)):
        with pytest.raises(Refused):
            call()
    assert view.head is None


@given(st.integers(0, 2000), st.integers(0, 7))
def test_one_flipped_bit_in_a_snapshot_is_a_mismatch(position: int, bit: int) -> None:
    raw_head, raw = state([entry("n1"), entry("n2")])
    damaged = bytearray(raw)
    damaged[position % len(raw)] ^= 1 << bit
    with pytest.raises(Refused, match="mismatch"):
        parse_snapshot(bytes(damaged), parse_head(raw_head, "f", "p"))
