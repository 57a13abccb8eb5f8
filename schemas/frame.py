"""The frame: many finished requests of one node in one Kafka message, as columns.

A frame is a MessagePack map, so any language writes it. Binary columns are little-endian and contiguous; a column that is
absent is unknown for every row. Everything that concerns a pool travels on `telemetry.frames` in the pool's partition, so one
reader sees one order: requests as frames (`kind` "requests"), node, GPU and deploy events as event frames (`kind` "events").

A *sketch frame* (`kind` "sketch", `schemas.sketch`) is a frame of requests with one more column, `weight` (uint32, from 1): each
row stands for so many requests that are alike. It is a kind of its own because a reader that does not know weights would count
each row once; such a reader sends it to the dead letters instead.

Identity for de-duplication: (node, boot_id, seq) for frames an agent wrote itself; for frames that a framer made from a
source topic, `origin` ("topic/partition") with `origin_offset`, the source offset of every row, which grows for each node.
A row of a sketch frame has no source offset, so a sketch frame needs a `boot_id`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.batch import LATENCY_SLIS, NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.errors import SchemaError
from schemas.telemetry import StateEvent

__all__ = [
    "FRAME_VERSION",
    "MAX_SKETCHED",
    "EventFrame",
    "FrameHeader",
    "RequestFrame",
    "decode_frame",
    "encode_event_frame",
    "encode_request_frame",
]

FRAME_VERSION = 1
MAX_TS_S = 4e9  # Unix seconds, year 2096; also refuses NaN
MAX_ROWS = 100_000  # a frame is meant to hold 500 to 1,000 requests; far beyond that it is an attack or a bug
MAX_SKETCHED = 1 << 24
"""Requests that the rows of one sketch frame stand for at most: 16.7 million, and float32 still counts them one by one."""


class FrameHeader(msgspec.Struct, kw_only=True, frozen=True):
    """What identifies a frame."""

    pool: str
    node: str
    boot_id: str = ""
    seq: int = 0
    origin: str | None = None


class RequestFrame(msgspec.Struct, kw_only=True):
    """A decoded frame of requests; `origin_offset` is int64 (n,) or None."""

    header: FrameHeader
    batch: RequestBatch
    origin_offset: NDArray[np.int64] | None = None


class EventFrame(msgspec.Struct, kw_only=True):
    """Node, GPU, deploy and override events of one pool. `offsets` are source offsets, parallel to `events`, or empty."""

    header: FrameHeader
    events: list[StateEvent]
    offsets: list[int] = []


# Sums with a 32-bit column must stay inside int64: a bound of 2**62 (the year 2116 in nanoseconds) leaves room.
_Int62 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _WireStrings(msgspec.Struct, kw_only=True):
    words: list[str]
    codes: bytes


class _WireFrame(msgspec.Struct, kw_only=True):
    v: int
    kind: str
    pool: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    node: Annotated[str, msgspec.Meta(max_length=256)]
    boot_id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    seq: _Int62 = 0
    origin: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    t0_ns: _Int62 = 0
    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)] = 0
    cols: dict[str, bytes] = {}
    words: dict[str, _WireStrings] = {}
    events: list[StateEvent] = []
    offsets: list[_Int62] = []
    offset0: _Int62 = 0


_decoder = msgspec.msgpack.Decoder(_WireFrame)
_encoder = msgspec.msgpack.Encoder()

# What absent columns read as: one value with a stride of zero. Slices cost nothing, and nobody can write to them.
_ZEROS, _UNKNOWN = (np.broadcast_to(value, MAX_ROWS) for value in (np.uint32(0), UNKNOWN_TOKENS))
_NO, _SAYS_NOTHING = np.broadcast_to(np.False_, MAX_ROWS), np.broadcast_to(np.int8(-1), MAX_ROWS)
_NAN_BYTES = np.full(MAX_ROWS, np.nan, "<f4").tobytes()

_UINT_COLUMNS = ("prompt_tokens", "output_tokens", "cached_tokens", "batch_size")


def encode_request_frame(header: FrameHeader, batch: RequestBatch, origin_offset: NDArray[np.int64] | None = None) -> bytes:
    """Bytes of one frame; of a sketch frame where the batch has weights.

    Args:
        header: Identity; `header.node` is the node of every row.
        batch: Rows of that node only, n >= 1, spanning less than 71 minutes.
        origin_offset: Source offset of each row, int64 (n,), or None.

    Raises:
        ValueError: If the batch is empty, its times (in microseconds) or offsets span more than 32 bits, or it has weights and
            cannot be a sketch frame.
    """
    n = len(batch)
    if n == 0:
        raise ValueError("a frame holds at least one row")
    if batch.weight is not None and (fault := _sketch_fault(header, batch.weight, origin_offset is not None)):
        raise ValueError(fault)
    t0_ns = int(batch.ts_ns.min())
    dt_us = (batch.ts_ns - t0_ns) // 1000
    if int(dt_us.max()) > 0xFFFFFFFF:
        raise ValueError("rows of one frame span more than 71 minutes: cut them by time first")
    cols: dict[str, bytes] = {"dt_us": dt_us.astype("<u4").tobytes(), "outcome": batch.outcome.astype("u1", copy=False).tobytes()}
    for i, name in enumerate(LATENCY_SLIS):
        column = batch.latency_s[i]
        if not np.isnan(column).all():
            cols[name] = column.astype("<f4", copy=False).tobytes()
    for name in _UINT_COLUMNS:
        tokens: NDArray[np.uint32] = getattr(batch, name)
        if (tokens != UNKNOWN_TOKENS).any():
            cols[name] = tokens.astype("<u4", copy=False).tobytes()
    if (batch.probe >= 0).any():
        cols["probe"] = batch.probe.astype("i1", copy=False).tobytes()
    if batch.session.any():
        cols["session"] = batch.session.astype("<u4", copy=False).tobytes()
    if batch.kv_mismatch.any():
        cols["kv_mismatch"] = batch.kv_mismatch.astype("u1").tobytes()
    if batch.weight is not None:
        cols["weight"] = batch.weight.astype("<u4", copy=False).tobytes()
    words: dict[str, _WireStrings] = {}
    for name, all_words, codes in (("adapter", batch.adapters, batch.adapter), ("tenant", batch.tenants, batch.tenant)):
        used = np.unique(codes[codes != NO_CODE])
        if len(used):
            dense = np.full(len(codes), NO_CODE, np.uint32)
            present = codes != NO_CODE
            dense[present] = np.searchsorted(used, codes[present]).astype(np.uint32)
            words[name] = _WireStrings(words=[all_words[i] for i in used], codes=dense.astype("<u4").tobytes())
    offset0 = 0
    if origin_offset is not None:
        offset0 = int(origin_offset.min())
        if int(origin_offset.max()) - offset0 > 0xFFFFFFFF:
            raise ValueError("source offsets of one frame span more than 32 bits: cut them first")
        cols["origin_offset"] = (origin_offset - offset0).astype("<u4").tobytes()
    kind = "requests" if batch.weight is None else "sketch"
    return _encoder.encode(
        _WireFrame(
            v=FRAME_VERSION, kind=kind, pool=header.pool, node=header.node, boot_id=header.boot_id, seq=header.seq,
            origin=header.origin, t0_ns=t0_ns, n=n, cols=cols, words=words, offset0=offset0,
        )
    )  # fmt: skip


def encode_event_frame(header: FrameHeader, events: list[StateEvent], offsets: list[int] | None = None) -> bytes:
    """Bytes of one event frame; `offsets` are the source offsets of `events`, if they came from a topic."""
    return _encoder.encode(
        _WireFrame(
            v=FRAME_VERSION, kind="events", pool=header.pool, node=header.node, boot_id=header.boot_id, seq=header.seq,
            origin=header.origin, n=len(events), events=events, offsets=offsets or [],
        )
    )  # fmt: skip


def _column(wire: _WireFrame, name: str, dtype: str) -> NDArray[Any] | None:
    raw = wire.cols.get(name)
    if raw is None:
        return None
    if len(raw) != wire.n * np.dtype(dtype).itemsize:
        raise SchemaError("bad_frame", f"column {name} has {len(raw)} bytes, {wire.n} rows of {dtype} need another number")
    return np.frombuffer(raw, dtype)


def _latencies(wire: _WireFrame) -> NDArray[np.float32]:
    """Latency columns as one array (4, n); NaN where a column is absent."""
    parts = [wire.cols.get(name) for name in LATENCY_SLIS]
    whole = [_NAN_BYTES[: 4 * wire.n] if part is None else part for part in parts]
    for name, part in zip(LATENCY_SLIS, whole, strict=True):
        if len(part) != 4 * wire.n:
            raise SchemaError("bad_frame", f"column {name} has {len(part)} bytes, {wire.n} rows of <f4 need another number")
    return np.frombuffer(b"".join(whole), "<f4").reshape(len(LATENCY_SLIS), wire.n)


def _strings(wire: _WireFrame, name: str) -> tuple[list[str], NDArray[np.uint32]]:
    entry = wire.words.get(name)
    if entry is None:
        return [], _UNKNOWN[: wire.n]
    if len(entry.codes) != 4 * wire.n:
        raise SchemaError("bad_frame", f"dictionary column {name} has {len(entry.codes)} bytes for {wire.n} rows")
    codes = np.frombuffer(entry.codes, "<u4")
    if len(entry.words) > wire.n:
        raise SchemaError("bad_frame", f"dictionary column {name} has {len(entry.words)} words for {wire.n} rows")
    if (codes[codes != NO_CODE] >= len(entry.words)).any():
        raise SchemaError("bad_frame", f"dictionary column {name} points outside its {len(entry.words)} words")
    return entry.words, codes


def _sketch_fault(header: FrameHeader, weight: NDArray[np.uint32], has_offsets: bool) -> str:
    """Why rows with these weights cannot be a sketch frame; "" if they can."""
    if has_offsets or header.origin is not None:
        return "rows of a sketch frame have no source offset: they stand for requests from many"
    if not header.boot_id:
        return "a sketch frame needs a boot_id: counted twice it would weigh as much as all its requests"
    if int(weight.min()) < 1:
        return "column weight: a row stands for at least one request"
    requests = int(weight.sum(dtype=np.int64))
    return "" if requests <= MAX_SKETCHED else f"column weight: {requests} requests in a frame, {MAX_SKETCHED} at most"


def _weights(wire: _WireFrame, header: FrameHeader) -> NDArray[np.uint32] | None:
    if wire.kind == "requests":
        if "weight" in wire.cols:  # whoever wrote it means something by it
            raise SchemaError("bad_frame", 'column weight in a frame of kind "requests": rows with weights are of kind "sketch"')
        return None
    weight = _column(wire, "weight", "<u4")
    if weight is None:
        raise SchemaError("bad_frame", "column weight is required in a sketch frame")
    if fault := _sketch_fault(header, weight, "origin_offset" in wire.cols):
        raise SchemaError("bad_frame", fault)
    return weight


def _check_events(wire: _WireFrame) -> None:
    if not wire.events or wire.n != len(wire.events) or len(wire.offsets) not in (0, wire.n):
        raise SchemaError("bad_frame", f"{wire.n} rows, {len(wire.events)} events, {len(wire.offsets)} offsets")
    for event in wire.events:
        if event.pool != wire.pool:
            raise SchemaError("bad_frame", f"an event of pool {event.pool!r} in a frame of pool {wire.pool!r}")
        if not abs(event.ts) < MAX_TS_S:
            raise SchemaError("bad_frame", f"event time {event.ts}")


def decode_frame(raw: bytes) -> RequestFrame | EventFrame:
    """Decode one message of `telemetry.frames`. Columns are read-only.

    Raises:
        SchemaError: With reason ``bad_frame`` or ``frame_version``. Values inside rows are not judged here: outcome codes,
            latencies, ages. Only what would break arithmetic is.
    """
    try:
        wire = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:  # the last: nested beyond any use
        raise SchemaError("bad_frame", str(exc)) from None
    if wire.v != FRAME_VERSION:
        raise SchemaError("frame_version", f"this reader knows version {FRAME_VERSION}, the frame says {wire.v}")
    header = FrameHeader(pool=wire.pool, node=wire.node, boot_id=wire.boot_id, seq=wire.seq, origin=wire.origin)
    if wire.kind == "events":
        _check_events(wire)
        return EventFrame(header=header, events=wire.events, offsets=wire.offsets)
    if wire.kind not in ("requests", "sketch") or wire.n == 0 or not wire.node:
        raise SchemaError("bad_frame", f"kind {wire.kind!r}, node {wire.node!r}, {wire.n} rows")
    n = wire.n
    dt_us, outcome = _column(wire, "dt_us", "<u4"), _column(wire, "outcome", "u1")
    if dt_us is None or outcome is None:
        raise SchemaError("bad_frame", "columns dt_us and outcome are required")
    probe, session = _column(wire, "probe", "i1"), _column(wire, "session", "<u4")
    mismatch, weight = _column(wire, "kv_mismatch", "u1"), _weights(wire, header)
    adapters, adapter = _strings(wire, "adapter")
    tenants, tenant = _strings(wire, "tenant")
    offset = _column(wire, "origin_offset", "<u4")
    ts_ns = dt_us.astype(np.int64)
    ts_ns *= 1000
    ts_ns += wire.t0_ns
    prompt, output, cached, size = (_column(wire, name, "<u4") for name in _UINT_COLUMNS)
    batch = RequestBatch(
        pool=wire.pool,
        nodes=[wire.node],
        node=_ZEROS[:n],
        ts_ns=ts_ns,
        latency_s=_latencies(wire),
        outcome=outcome,
        prompt_tokens=_UNKNOWN[:n] if prompt is None else prompt,
        output_tokens=_UNKNOWN[:n] if output is None else output,
        cached_tokens=_UNKNOWN[:n] if cached is None else cached,
        batch_size=_UNKNOWN[:n] if size is None else size,
        adapters=adapters,
        adapter=adapter,
        tenants=tenants,
        tenant=tenant,
        probe=_SAYS_NOTHING[:n] if probe is None else probe,
        session=_ZEROS[:n] if session is None else session,
        kv_mismatch=_NO[:n] if mismatch is None else mismatch.astype(np.bool_),
        weight=weight,
    )
    return RequestFrame(
        header=header, batch=batch, origin_offset=None if offset is None else wire.offset0 + offset.astype(np.int64)
    )
