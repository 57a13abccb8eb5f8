"""EventFramer: columns of JSON events, refusals with their bytes, duplicates, and nothing that raises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.batch import MAX_HOST, NO_CODE, UNKNOWN_TOKENS, host_number
from schemas.outcome import OUTCOME_CODES
from schemas.telemetry import DeployEvent, NodeEvent
from streams.framing import EventFramer, Framed, stable_key
from streams.framing_rejects import MAX_EVENT_BYTES
from streams.framing_values import REASONS

T0 = 1_767_225_600.0


def request(**fields: Any) -> bytes:
    event = {"kind": "request", "ts": T0, "pool": "p", "node": "n1", "outcome": "ok", "ttft_s": 0.2} | fields
    return json.dumps({name: value for name, value in event.items() if value is not ...}).encode()


def test_columns_of_a_request() -> None:
    full = request(
        ts=T0 + 0.125, request_id="r-1", tenant="t-4", session="s-9", adapter="lora-3", prompt_tokens=812, output_tokens=120,
        cached_tokens=0, queue_s=0.012, ttft_s=0.210, tpot_s=0.0181, e2e_s=2.4, batch_size=14, probe=False, kv_slot_expected=42,
        kv_slot_actual=43, unknown_field={"a": [1, 2]},
    )  # fmt: skip
    batch = EventFramer().feed([full]).pools["p"].batch
    assert batch.ts_ns.tolist() == [1_767_225_600_125_000_000]
    np.testing.assert_array_equal(batch.latency_s[:, 0], np.array([0.210, 0.0181, 0.012, 2.4], np.float32))
    assert (batch.nodes, batch.adapters, batch.tenants) == (["n1"], ["lora-3"], ["t-4"])
    assert (batch.node[0], batch.adapter[0], batch.tenant[0]) == (0, 0, 0)
    assert (batch.prompt_tokens[0], batch.output_tokens[0], batch.cached_tokens[0], batch.batch_size[0]) == (812, 120, 0, 14)
    assert batch.probe[0] == 0
    assert batch.session[0] == stable_key("s-9")
    assert batch.kv_mismatch[0]
    assert batch.outcome[0] == OUTCOME_CODES["ok"]


def test_a_probe_carries_the_number_of_its_host() -> None:
    def of(name: str | None) -> int:
        return int(EventFramer().feed([request(probe=True, probe_host=name)]).pools["p"].batch.probe[0])

    assert of(None) == 1
    assert of("gw-1") == of("gw-1") == host_number("gw-1")
    assert min(numbers := {of(f"gw-{i}") for i in range(300)}) >= 2
    assert max(numbers) <= MAX_HOST
    assert len(numbers) > 100
    assert EventFramer().feed([request(probe=False, probe_host="gw-1")]).pools["p"].batch.probe[0] == 0


def test_missing_and_null_fields_are_unknown_never_zero() -> None:
    for line in (request(ttft_s=...), request(ttft_s=None, prompt_tokens=None, adapter=None, probe=None, session=None)):
        batch = EventFramer().feed([line]).pools["p"].batch
        assert np.isnan(batch.latency_s).all()
        assert batch.prompt_tokens[0] == batch.batch_size[0] == UNKNOWN_TOKENS
        assert batch.adapter[0] == batch.tenant[0] == NO_CODE
        assert batch.probe[0] == -1
        assert batch.session[0] == 0
        assert not batch.kv_mismatch[0]


def test_one_known_kv_slot_is_no_mismatch() -> None:
    batch = EventFramer().feed([request(kv_slot_expected=1), request(kv_slot_actual=1)]).pools["p"].batch
    assert not batch.kv_mismatch.any()


def test_integer_timestamp_is_understood() -> None:
    assert EventFramer().feed([request(ts=int(T0))]).pools["p"].batch.ts_ns[0] == int(T0) * 10**9


@pytest.mark.parametrize("tokens", [0, 1])
def test_time_per_token_of_one_token_is_unknown(tokens: int) -> None:
    batch = (
        EventFramer().feed([request(output_tokens=tokens, tpot_s=0.0), request(output_tokens=2, tpot_s=0.01)]).pools["p"].batch
    )
    assert np.isnan(batch.latency_s[1, 0])
    assert batch.latency_s[1, 1] == np.float32(0.01)


REFUSED = [
    (b"", "bad_json"),
    (b'{"kind":"request"', "bad_json"),
    (b"[]", "bad_type"),
    (b"null", "bad_type"),
    (b"\xff\xfe\x00", "bad_utf8"),
    (b'{"kind":"request","ts":1,"pool":"p\xff","node":"n","outcome":"ok"}', "bad_utf8"),
    (b'{"ts":1}', "missing_field"),
    (request(node=...), "missing_field"),
    (request(outcome=...), "missing_field"),
    (b'{"kind":"coffee","ts":1}', "unknown_kind"),
    (request(ts="now"), "bad_type"),
    (request(ttft_s="0.2"), "bad_type"),
    (request(probe=1), "bad_type"),
    (request(prompt_tokens=1.5), "bad_type"),
    (request(pool=""), "bad_value"),
    (request(node="x" * 257), "bad_value"),
    (b'{"kind":"request","ts":1,"pool":"p","node":"n","outcome":"ok","ttft_s":NaN}', "nan_or_inf"),
    (b'{"kind":"request","ts":1,"pool":"p","node":"n","outcome":"ok","ttft_s":-Infinity}', "nan_or_inf"),
    (b'{"kind":"request","ts":1,"pool":"p","node":"n","outcome":"ok","ttft_s":1e999}', "nan_or_inf"),
    (request(ttft_s=-1e-9), "negative_latency"),
    (request(e2e_s=3600.1), "latency_too_large"),
    (request(e2e_s=1e300), "latency_too_large"),
    (request(outcome="banana"), "unknown_outcome"),
    (request(ts=-1), "bad_timestamp"),
    (request(ts=T0 * 1000), "bad_timestamp"),
    (request(ts=1e300), "bad_timestamp"),
    (request(prompt_tokens=-1), "bad_count"),
    (request(output_tokens=2**32 - 1), "bad_count"),
    (request(batch_size=10**400), "bad_count"),
    (request(x="y" * MAX_EVENT_BYTES), "too_large"),
    (b'{"kind":"request","x":' + b"[" * 5000 + b"]" * 5000 + b"}", "too_deep"),
    (b'{"kind":"node","ts":-5,"pool":"p","node":"n"}', "bad_timestamp"),
    (b'{"kind":"node","ts":5,"pool":"p","node":"n","running":-1}', "bad_value"),
    (b'{"kind":"gpu","ts":5,"pool":"p","node":"n"}', "missing_field"),
]


@pytest.mark.parametrize(("line", "reason"), REFUSED)
def test_refused_with_bytes_reason_and_offset(line: bytes, reason: str) -> None:
    good = [request(request_id=str(i), ts=T0 + i) for i in range(4)]
    framed = EventFramer().feed([*good[:2], line, *good[2:]], offsets=[10, 11, 12, 17, 18])
    assert [(r.raw, r.reason, r.offset) for r in framed.rejects] == [(line, reason, 12)]
    assert framed.rejects[0].detail
    assert reason in REASONS
    assert list(framed.pools) == ["p"]
    assert framed.pools["p"].row_offset.tolist() == [10, 11, 17, 18]
    assert framed.pools["p"].batch.ts_ns.tolist() == [round((T0 + i) * 1e9) for i in range(4)]


def test_values_at_the_limits_are_believed() -> None:
    framed = EventFramer().feed([request(ttft_s=0, e2e_s=3600, prompt_tokens=2**32 - 2, ts=0)])
    assert not framed.rejects


def test_two_events_cannot_hide_in_one_line_nor_one_in_two() -> None:
    one = request()
    cut = one.index(b",") + 1
    framed = EventFramer().feed([one + b"," + one, one[:cut], one[cut:], one + b"\n" + one])
    assert [r.reason for r in framed.rejects] == ["bad_json", "bad_json", "bad_type", "bad_json"]
    assert not framed.pools


def test_every_line_bad() -> None:
    framed = EventFramer().feed([b"x"] * 500)
    assert [r.offset for r in framed.rejects] == list(range(500))


def test_duplicates_are_dropped_once_per_pool_and_node() -> None:
    framer = EventFramer()
    same = request(request_id="a")
    framed = framer.feed([same, same, request(request_id="a", node="n2"), request(request_id="a", pool="q")])
    assert framed.duplicates == [1]
    assert not framed.rejects
    assert {name: len(rows.batch) for name, rows in framed.pools.items()} == {"p": 2, "q": 1}
    assert framer.feed([same]).duplicates == [0]
    assert framer.feed([request(), request()]).duplicates == [], "no identifier: cannot be a duplicate"
    assert framer.feed([request(request_id="a", ts=T0 + 600)]).duplicates == [], "far away in time: another request"


def test_duplicate_around_the_border_of_two_slots() -> None:
    framer = EventFramer(dedup_window_s=60)
    assert framer.feed([request(request_id="a", ts=T0 + 59.9)]).duplicates == []
    assert framer.feed([request(request_id="a", ts=T0 + 60.1)]).duplicates == [0]


def test_a_wild_timestamp_does_not_make_it_forget() -> None:
    framer = EventFramer()
    framer.feed([request(request_id="a")])
    framer.feed([request(request_id="wild", ts=T0 + 86400)])
    assert framer.feed([request(request_id="a")]).duplicates == [0]


def test_memory_of_identifiers_is_bounded() -> None:
    framer = EventFramer(max_ids=1000)
    for minute in range(20):
        framer.feed([request(request_id=f"{minute}-{i}", ts=T0 + 60 * minute) for i in range(200)])
    assert len(framer._recent) <= 1000
    scattered = EventFramer()
    scattered.feed([request(request_id=str(i), ts=T0 + 3600 * i) for i in range(1000)])
    assert len(scattered._recent) <= 64


def test_pools_get_their_own_dictionaries_and_order_is_kept() -> None:
    lines = [
        request(pool="a", node="n1", adapter="x", ts=T0),
        request(pool="b", node="n2", adapter="y", ts=T0 + 1),
        request(pool="a", node="n3", ts=T0 + 2),
        request(pool="a", node="n1", ttft_s=-1, ts=T0 + 3),
        request(pool="b", node="n9", outcome="no", ts=T0 + 4),
    ]
    framed = EventFramer().feed(lines)
    a, b = framed.pools["a"].batch, framed.pools["b"].batch
    assert (a.pool, a.nodes, a.node.tolist(), a.adapters) == ("a", ["n1", "n3"], [0, 1], ["x"])
    assert (b.pool, b.nodes, b.node.tolist(), b.adapters, b.adapter.tolist()) == ("b", ["n2"], [0], ["y"], [0])
    assert a.adapter.tolist() == [0, NO_CODE]
    assert framed.pools["a"].row_offset.tolist() == [0, 2]


def test_state_events_come_with_their_offsets() -> None:
    framed = EventFramer().feed(
        [
            b'{"kind":"node","ts":5,"pool":"p","node":"n","running":2}',
            request(),
            b'{"kind":"deploy","ts":6,"pool":"p","node":null,"what":"x"}',
        ]
    )
    rows = framed.pools["p"]
    assert [type(e) for e in rows.events] == [NodeEvent, DeployEvent]
    assert (rows.event_offset, rows.row_offset.tolist()) == ([0, 2], [1])


def test_only_state_events_give_an_empty_batch() -> None:
    rows = EventFramer().feed([b'{"kind":"node","ts":5,"pool":"p","node":"n"}']).pools["p"]
    assert len(rows.batch) == 0
    assert rows.batch.latency_s.shape == (4, 0)


def test_nothing_in_nothing_out() -> None:
    assert EventFramer().feed([]) == Framed()


def test_keys_are_the_same_in_every_process() -> None:
    code = "from streams.framing import stable_key; print(stable_key('s-9'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{stable_key('s-9')}\n"}
    assert stable_key("s-9") == 3604602364


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
request_like = st.dictionaries(
    st.sampled_from(
        ["kind", "ts", "pool", "node", "outcome", "ttft_s", "tpot_s", "output_tokens", "probe", "request_id", "session"]
    ),
    json_values | st.sampled_from(["request", "node", "gpu", "deploy", "ok", T0]),
).map(lambda fields: json.dumps({"kind": "request", "ts": T0, "pool": "p", "node": "n", "outcome": "ok"} | fields).encode())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40) | request_like, max_size=12))
def test_never_raises_and_accounts_for_every_line(lines: list[bytes]) -> None:
    framed = EventFramer().feed(lines)
    kept = sum(len(rows.batch) + len(rows.events) for rows in framed.pools.values())
    assert kept + len(framed.rejects) + len(framed.duplicates) == len(lines) == framed.n_events


def _cut(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for i in range(0, len(lines), size):
        yield lines[i : i + size]


@pytest.mark.parametrize("size", [1, 7])
def test_cutting_the_stream_elsewhere_gives_the_same_rows(size: int) -> None:
    lines = [request(request_id=str(i % 50), ts=T0 + i / 10, ttft_s=0.1 * (i % 13) - 0.1, node=f"n{i % 3}") for i in range(200)]
    framer = EventFramer()
    parts = [framed for chunk in _cut(lines, size) if (framed := framer.feed(chunk)).pools]
    whole = EventFramer().feed(lines).pools["p"].batch
    assert np.concatenate([f.pools["p"].batch.ts_ns for f in parts]).tolist() == whole.ts_ns.tolist()
    names = [b.nodes[c] for f in parts for b in [f.pools["p"].batch] for c in b.node]
    assert names == [whole.nodes[c] for c in whole.node]
