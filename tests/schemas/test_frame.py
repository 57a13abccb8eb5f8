"""Frames: round trip, and bytes of any kind raise nothing but SchemaError."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.batch import LATENCY_SLIS, NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.errors import SchemaError
from schemas.frame import EventFrame, FrameHeader, RequestFrame, decode_frame, encode_event_frame, encode_request_frame
from schemas.telemetry import DeployEvent, GpuEvent, NodeEvent

HEADER = FrameHeader(pool="p/eu", node="n1", boot_id="b", seq=7, origin="telemetry.requests/3")


def make_batch(n: int, seed: int, *, sparse: bool = False) -> RequestBatch:
    rng = np.random.default_rng(seed)

    def tokens() -> Any:
        values = rng.integers(0, 5000, n).astype(np.uint32)
        return np.where(rng.random(n) < 0.3, UNKNOWN_TOKENS, values) if not sparse else np.full(n, UNKNOWN_TOKENS, np.uint32)

    latency = rng.lognormal(size=(len(LATENCY_SLIS), n)).astype(np.float32)
    latency[rng.random(latency.shape) < (1.0 if sparse else 0.2)] = np.nan
    return RequestBatch(
        pool="p/eu",
        nodes=["other", "n1"],
        node=np.ones(n, np.uint32),
        ts_ns=1_700_000_000_000_000_000 + rng.integers(0, 3_600_000_000, n) * 1000,
        latency_s=latency,
        outcome=rng.integers(0, 8, n).astype(np.uint8),
        prompt_tokens=tokens(),
        output_tokens=tokens(),
        cached_tokens=tokens(),
        batch_size=tokens(),
        probe=np.full(n, -1, np.int8) if sparse else rng.integers(-1, 2, n).astype(np.int8),
        adapters=["lora-a", "never used", "lora-ü"],
        adapter=np.full(n, NO_CODE, np.uint32) if sparse else rng.choice(np.array([0, 2, NO_CODE], np.uint32), n),
        tenants=["t"],
        tenant=np.full(n, NO_CODE, np.uint32) if sparse else rng.choice(np.array([0, NO_CODE], np.uint32), n),
        session=np.zeros(n, np.uint32) if sparse else rng.integers(0, 2**32, n).astype(np.uint32),
        kv_mismatch=np.zeros(n, np.bool_) if sparse else rng.random(n) < 0.1,
    )


def words(names: list[str], codes: Any) -> list[str | None]:
    return [None if c == NO_CODE else names[c] for c in codes]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), sparse=st.booleans(), offsets=st.booleans())
def test_round_trip(n: int, seed: int, sparse: bool, offsets: bool) -> None:
    batch = make_batch(n, seed, sparse=sparse)
    origin = np.arange(n, dtype=np.int64) * 3 + 2**40 if offsets else None
    frame = decode_frame(encode_request_frame(HEADER, batch, origin))
    assert isinstance(frame, RequestFrame)
    got = frame.batch
    assert frame.header == HEADER
    assert (got.pool, got.nodes, got.node.tolist()) == ("p/eu", ["n1"], [0] * n)
    for name in (
        "ts_ns",
        "outcome",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "batch_size",
        "probe",
        "session",
        "kv_mismatch",
    ):
        np.testing.assert_array_equal(getattr(got, name), getattr(batch, name), err_msg=name)
        assert getattr(got, name).dtype == getattr(batch, name).dtype, name
    np.testing.assert_array_equal(got.latency_s, batch.latency_s)
    assert words(got.adapters, got.adapter) == words(batch.adapters, batch.adapter)
    assert words(got.tenants, got.tenant) == words(batch.tenants, batch.tenant)
    assert "never used" not in got.adapters
    assert (frame.origin_offset is None) if origin is None else frame.origin_offset.tolist() == origin.tolist()  # type: ignore[union-attr]


def test_round_trip_of_events() -> None:
    events = [
        NodeEvent(ts=1.5, pool="p/eu", node="n1", running=3),
        GpuEvent(ts=2.0, pool="p/eu", node="n1", gpu="g", xid=79),
        DeployEvent(ts=3.0, pool="p/eu", what="x"),
    ]
    frame = decode_frame(encode_event_frame(HEADER, events, [4, 5, 9]))
    assert isinstance(frame, EventFrame)
    assert (frame.events, frame.offsets, frame.header) == (events, [4, 5, 9], HEADER)


def test_a_batch_that_does_not_fit_is_refused_at_the_writer() -> None:
    batch = make_batch(2, 1)
    with pytest.raises(ValueError, match="at least one row"):
        encode_request_frame(HEADER, batch.take(slice(0, 0)))
    with pytest.raises(ValueError, match="offsets"):
        encode_request_frame(HEADER, batch, np.array([0, 2**32], np.int64))
    batch.ts_ns = np.array([0, 72 * 60 * 10**9], np.int64)
    with pytest.raises(ValueError, match="71 minutes"):
        encode_request_frame(HEADER, batch)


def decode_or_refuse(raw: bytes) -> None:
    with contextlib.suppress(SchemaError):
        decode_frame(raw)


FRAMES = [
    encode_request_frame(HEADER, make_batch(9, 1), np.arange(9, dtype=np.int64)),
    encode_request_frame(HEADER, make_batch(3, 2, sparse=True)),
    encode_event_frame(HEADER, [NodeEvent(ts=1.5, pool="p/eu", node="n1", running=3)], [1]),
]


@pytest.mark.parametrize("raw", FRAMES)
def test_every_truncation_is_refused(raw: bytes) -> None:
    for length in range(len(raw)):
        with pytest.raises(SchemaError):
            decode_frame(raw[:length])


@pytest.mark.parametrize("raw", FRAMES)
def test_every_flipped_bit_decodes_or_is_refused(raw: bytes) -> None:
    for at in range(len(raw)):
        for bit in range(8):
            decode_or_refuse(raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    decode_or_refuse(raw)


REQUESTS = {"v": 1, "kind": "requests", "pool": "p", "node": "n", "n": 1, "cols": {"dt_us": b"\0\0\0\0", "outcome": b"\0"}}
EVENTS = {
    "v": 1,
    "kind": "events",
    "pool": "p",
    "node": "n",
    "n": 1,
    "events": [{"kind": "node", "ts": 1.0, "pool": "p", "node": "n"}],
}


@pytest.mark.parametrize("good", [REQUESTS, EVENTS])
def test_the_hand_written_frames_are_good(good: dict[str, Any]) -> None:
    decode_frame(msgspec.msgpack.encode(good))


def with_raw_field(name: str, value: bytes) -> bytes:
    raw = msgspec.msgpack.encode(REQUESTS)
    return bytes([raw[0] + 1]) + raw[1:] + msgspec.msgpack.encode(name) + value


@pytest.mark.parametrize(
    "raw",
    [
        with_raw_field("unknown", b"\x91" * 200_000 + b"\x01"),  # nested 200,000 deep
        with_raw_field("events", b"\xdd\xff\xff\xff\xff"),  # claims four thousand million elements
        with_raw_field("boot_id", b"\xdb\xff\xff\xff\xff"),
        with_raw_field("boot_id", b"\xa2\xff\xfe"),  # not UTF-8
        *(msgspec.msgpack.encode({**REQUESTS, **change}) for change in (
            {"t0_ns": 2**63 + 5}, {"t0_ns": 2**63 - 1}, {"offset0": 2**64 - 1}, {"seq": -(2**63)},
            {"n": 100_001}, {"n": -1}, {"n": 0},
            {"pool": ""}, {"node": ""}, {"pool": "x" * 257}, {"kind": "other"}, {"v": 2},
            {"cols": {"dt_us": b"\0\0\0\0"}}, {"cols": {**REQUESTS["cols"], "ttft_s": b"\0"}},  # type: ignore[dict-item]
            {"words": {"adapter": {"words": ["a"], "codes": b"\1\0\0\0"}}},
            {"words": {"adapter": {"words": ["a"], "codes": b""}}},
            {"words": {"adapter": {"words": ["a", "b"], "codes": b"\0\0\0\0"}}},
        )),
        *(msgspec.msgpack.encode({**EVENTS, **change}) for change in (
            {"n": 2}, {"n": 0, "events": []}, {"offsets": [1, 2]},
            {"events": [{"kind": "node", "ts": 1.0, "pool": "another", "node": "n"}]},
            {"events": [{"kind": "node", "ts": float("nan"), "pool": "p", "node": "n"}]},
            {"events": [{"kind": "node", "ts": 1e300, "pool": "p", "node": "n"}]},
            {"events": [{"kind": "request", "ts": 1.0, "pool": "p", "node": "n", "outcome": "ok"}]},
        )),
    ],
)  # fmt: skip
def test_hostile_frames_are_refused(raw: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_frame(raw)
