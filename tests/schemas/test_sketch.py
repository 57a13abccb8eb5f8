"""Sketch frames: what condensing keeps exactly, the wire, and frames that lie about their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import histogram
from detectors.strata import stratum_of, uncached_tokens
from detectors.weights import count
from schemas.batch import CONTRARY_ROUNDING, LATENCY_SLIS, NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.errors import SchemaError
from schemas.frame import MAX_SKETCHED, FrameHeader, RequestFrame, decode_frame, encode_request_frame
from schemas.frame_bulk import encode_request_frames
from schemas.scopes import PROMPT_CLASSES
from schemas.sketch import condense
from streams.framing_values import valid_rows

HEADER = FrameHeader(pool="p/eu", node="n1", boot_id="b", seq=7)
T0_NS = 1_700_000_000_000_000_000


def make_batch(n: int, seed: int, *, faults: bool = False) -> RequestBatch:
    """Requests of one node over three seconds; some without this or that, and some that must be refused."""
    rng = np.random.default_rng(seed)

    def tokens(most: int) -> Any:
        return np.where(rng.random(n) < 0.2, UNKNOWN_TOKENS, rng.integers(0, most, n).astype(np.uint32))

    latency = rng.lognormal(-1, 1, (4, n)).astype(np.float32)
    latency[rng.random((4, n)) < 0.1] = np.nan
    if faults:
        bad = np.array([-1.0, -0.0, np.inf, 7200.0, 3600.0, 0.0], np.float32)
        latency = np.where(rng.random((4, n)) < 0.1, rng.choice(bad, (4, n)), latency)
    return RequestBatch(
        pool="p/eu", nodes=["other", "n1"], node=np.ones(n, np.uint32), ts_ns=T0_NS + rng.integers(0, 3_000_000, n) * 1000,
        latency_s=latency, outcome=rng.integers(0, 8, n).astype(np.uint8), prompt_tokens=tokens(20_000),
        output_tokens=np.where(rng.random(n) < 0.2, rng.integers(0, 3, n).astype(np.uint32), tokens(900)),
        cached_tokens=tokens(20_000), batch_size=tokens(9), probe=rng.integers(-1, 4, n).astype(np.int8),
        adapters=["lora-a", "lora-ü"], adapter=rng.choice(np.array([0, 1, NO_CODE], np.uint32), n), tenants=["t"],
        tenant=rng.choice(np.array([0, NO_CODE], np.uint32), n),
        session=np.where(rng.random(n) < 0.3, 0, rng.integers(0, 2**32, n)).astype(np.uint32), kv_mismatch=rng.random(n) < 0.1,
    )  # fmt: skip


def tables(batch: RequestBatch, *, sessions: bool) -> dict[str, Any]:
    """Counts of requests by everything that is promised to stay exact."""
    of = (batch.ts_ns - T0_NS) // 10**9
    prompt = np.where(batch.prompt_tokens == UNKNOWN_TOKENS, 9, np.searchsorted(PROMPT_CLASSES, batch.prompt_tokens, "right"))
    stratum = stratum_of(uncached_tokens(batch.prompt_tokens, batch.cached_tokens), batch.adapter + np.uint32(1), 64)
    ttft_s, e2e_s = batch.latency_s[0], batch.latency_s[3]
    marks = {
        "outcome": batch.outcome, "adapter": batch.adapter + np.uint32(1), "tenant": batch.tenant + np.uint32(1),
        "prompt": prompt, "stratum": stratum, "probe": batch.probe.astype(int) + 1, "kv": batch.kv_mismatch,
        "blank": (batch.output_tokens == 0), "one": batch.output_tokens == 1, "answer": batch.output_tokens == UNKNOWN_TOKENS,
        "contrary": ttft_s > e2e_s * CONTRARY_ROUNDING[0] + CONTRARY_ROUNDING[1],
        "slow": (ttft_s > np.float32(0.5)) & (batch.outcome == 0),
    }  # fmt: skip
    if sessions:
        marks["session"] = np.where(batch.session == 0, 0, 1 + batch.session % 1024)
    out = {name: count(mark.astype(np.int64) * 4 + of, batch.weight, 5000) for name, mark in marks.items()}
    for sli, name in enumerate(LATENCY_SLIS):
        counts = np.zeros((32, histogram.BUCKETS), np.uint32)
        use = np.isfinite(batch.latency_s[sli])
        weight = None if batch.weight is None else batch.weight[use]
        histogram.add(counts, (batch.outcome * 4 + of)[use], batch.latency_s[sli][use], weight)
        out[name] = counts
        out[f"{name} quantiles"] = histogram.quantiles(counts.sum(axis=0), [0.5, 0.99])
    for name, chosen in (("asked", batch.outcome >= 0), ("served", batch.outcome == 0)):
        out[name] = batch.ts_ns[chosen].max(initial=0)
    return out


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 800), seed=st.integers(0, 2**32 - 1), sessions=st.booleans(), bins=st.integers(1, 3))
def test_what_is_promised_to_stay_exact_does(n: int, seed: int, sessions: bool, bins: int) -> None:
    raw = make_batch(n, seed)
    rows = condense(raw, cuts={"ttft_s": [0.5]}, sessions=sessions, bins_per_octave=bins)
    assert rows.requests == n
    assert int(rows.weight.min()) >= 1  # type: ignore[union-attr]
    assert (rows.nodes, len(rows)) == (["n1"], len(rows.node))
    one, two = tables(raw, sessions=sessions), tables(rows, sessions=sessions)
    for name, values in one.items():
        np.testing.assert_array_equal(two[name], values, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_refused_values_are_refused_with_their_number(n: int, seed: int) -> None:
    raw = make_batch(n, seed, faults=True)
    (good, why), (rows, why_rows) = valid_rows(raw), valid_rows(condense(raw, cuts={"ttft_s": [0.5]}))
    assert why_rows == why
    assert rows.requests == len(good)
    one, two = tables(good, sessions=False), tables(rows, sessions=False)
    for name, values in one.items():
        np.testing.assert_array_equal(two[name], values, err_msg=name)


def test_a_hundred_times_as_many_requests_are_hardly_more_rows() -> None:
    rng = np.random.default_rng(0)
    sizes = []
    for n in (2000, 200_000):
        batch = replace(
            make_batch(n, 1), outcome=np.zeros(n, np.uint8), latency_s=rng.lognormal(-1, 0.3, (4, n)).astype(np.float32),
            adapter=np.full(n, NO_CODE), tenant=np.full(n, NO_CODE), probe=np.full(n, -1, np.int8),
            kv_mismatch=np.zeros(n, np.bool_), ts_ns=np.full(n, T0_NS), prompt_tokens=np.full(n, np.uint32(500)),
            output_tokens=np.full(n, np.uint32(100)), cached_tokens=np.full(n, UNKNOWN_TOKENS),
        )  # fmt: skip
        sizes.append(len(condense(batch)))
    assert sizes[1] < 2 * sizes[0] < 2000


@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        ({"weight": np.ones(3, np.uint32)}, {}, "weights already"),
        ({"node": np.array([0, 1, 1], np.uint32)}, {}, "one node"),
        ({}, {"slice_s": 0.0}, "positive"),
        ({}, {"bins_per_octave": 0}, "positive"),
    ],
)
def test_what_cannot_be_condensed(change: dict[str, Any], options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        condense(replace(make_batch(3, 1), **change), **options)


def test_nothing_condensed_is_nothing() -> None:
    assert len(condense(make_batch(0, 1))) == 0


# -- the wire ----


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_round_trip(n: int, seed: int) -> None:
    rows = condense(make_batch(n, seed))
    frame = decode_frame(encode_request_frame(HEADER, rows))
    assert isinstance(frame, RequestFrame)
    assert frame.origin_offset is None
    assert frame.batch.requests == n
    np.testing.assert_array_equal(frame.batch.weight, rows.weight)
    np.testing.assert_array_equal(frame.batch.latency_s, rows.latency_s)
    np.testing.assert_array_equal(frame.batch.ts_ns, rows.ts_ns)


def weight_of(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


COLS = {"dt_us": bytes(8), "outcome": bytes(2), "weight": weight_of(5, 70_000)}
SKETCH = {"v": 1, "kind": "sketch", "pool": "p", "node": "n", "boot_id": "b", "seq": 1, "n": 2, "cols": COLS}


def test_the_hand_written_sketch_is_good() -> None:
    frame = decode_frame(msgspec.msgpack.encode(SKETCH))
    assert isinstance(frame, RequestFrame)
    assert frame.batch.requests == 70_005


def cols(**change: bytes | None) -> dict[str, Any]:
    return {"cols": {name: raw for name, raw in {**COLS, **change}.items() if raw is not None}}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a weight of 0": (cols(weight=weight_of(5, 0)), "at least one request"),
    "weights of 0 alone": (cols(weight=weight_of(0, 0)), "at least one request"),
    "too many requests": (cols(weight=weight_of(MAX_SKETCHED, 1)), "at most"),
    "a sum that wraps in 32 bits": (cols(weight=weight_of(2**31, 2**31)), "at most"),
    "weights that are negative as int32": (cols(weight=weight_of(1, 2**32 - 1)), "at most"),
    "a column that is too short": (cols(weight=weight_of(5)), "bytes"),
    "a column that is too long": (cols(weight=weight_of(5, 5, 5)), "bytes"),
    "no weights": (cols(weight=None), "required"),
    "no rows": ({"n": 0, "cols": {"weight": b""}}, "0 rows"),
    "no node": ({"node": ""}, "node"),
    "no boot": ({"boot_id": ""}, "boot_id"),
    "a source": ({"origin": "telemetry.requests/0"}, "source offset"),
    "source offsets": (cols(origin_offset=bytes(8)), "source offset"),
    "weights in a frame of requests": ({"kind": "requests"}, 'of kind "sketch"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames_are_refused_by_name(name: str) -> None:
    change, why = HOSTILE[name]
    with pytest.raises(SchemaError, match=why) as caught:
        decode_frame(msgspec.msgpack.encode({**SKETCH, **change}))
    assert caught.value.reason == "bad_frame"


def test_as_many_requests_as_a_frame_may_stand_for() -> None:
    frame = decode_frame(msgspec.msgpack.encode({**SKETCH, **cols(weight=weight_of(MAX_SKETCHED - 1, 1))}))
    assert isinstance(frame, RequestFrame)
    assert frame.batch.requests == MAX_SKETCHED


@pytest.mark.parametrize("raw", [encode_request_frame(HEADER, condense(make_batch(6, 2)))])
def test_truncated_and_flipped_bytes_decode_or_are_refused(raw: bytes) -> None:
    for length in range(len(raw)):
        with pytest.raises(SchemaError):
            decode_frame(raw[:length])
    for at in range(len(raw)):
        for bit in (0, 3, 7):
            try:
                frame = decode_frame(raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :])
            except SchemaError:
                continue
            assert isinstance(frame, RequestFrame)
            assert frame.batch.weight is None or 1 <= frame.batch.requests <= MAX_SKETCHED


def test_the_writer_refuses_what_the_reader_would() -> None:
    rows = condense(make_batch(9, 1))
    with pytest.raises(ValueError, match="source offset"):
        encode_request_frame(HEADER, rows, np.arange(len(rows)))
    with pytest.raises(ValueError, match="boot_id"):
        encode_request_frame(FrameHeader(pool="p", node="n1"), rows)
    for weight, why in ((0, "at least one"), (MAX_SKETCHED + 1, "at most")):
        with pytest.raises(ValueError, match=why):
            encode_request_frame(HEADER, replace(rows, weight=np.full(len(rows), weight, np.uint32)))
    with pytest.raises(ValueError, match="no source offsets"):
        list(encode_request_frames("telemetry.requests/0", rows, np.arange(len(rows)), np.zeros(1, np.int64)))
