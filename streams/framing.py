"""JSON telemetry events to columns, many at once, refusing what cannot be true.

One event costs about two microseconds: a typed decode (msgspec) and one list comprehension per column. Nothing that arrives
raises: a refused event is handed back with its bytes, a stable reason (`streams.framing_values.REASONS`) and a sentence.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.batch import NO_CODE, UNKNOWN_TOKENS, RequestBatch, host_number
from schemas.outcome import OUTCOME_CODES
from schemas.telemetry import DeployEvent, Event, GpuEvent, NodeEvent, OverrideEvent, RequestEvent
from streams.framing_ids import RecentIds
from streams.framing_rejects import MAX_EVENT_BYTES, Reject, StateEvent, request_detail, state_fault, why
from streams.framing_values import CODE, MAX_TS_S, REASONS, UNKNOWN_OUTCOME_CODE, blank_tpot, row_faults, valid_rows

__all__ = ["EventFramer", "Framed", "PoolRows", "Reject", "StateEvent", "rows_of", "stable_key", "valid_rows"]


@dataclass(slots=True)
class PoolRows:
    """What one call of `EventFramer.feed` held for one pool, in arrival order.

    Attributes:
        batch: Requests; may be empty.
        row_offset: Offset (or position in the call) of each request, int64 (len(batch),), growing.
        events: Node, GPU and deploy events.
        event_offset: Offset of each of `events`.
    """

    batch: RequestBatch
    row_offset: NDArray[np.int64]
    events: list[StateEvent] = field(default_factory=list)
    event_offset: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Framed:
    """Result of one call of `EventFramer.feed`.

    Attributes:
        pools: Rows of each pool.
        rejects: Refused events by growing offset.
        duplicates: Offsets of the copies that were dropped.
        n_events: Events that went in, whatever became of them.
    """

    pools: dict[str, PoolRows] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    n_events: int = 0


def stable_key(word: str) -> int:
    """32-bit hash of a word, the same in every process and language (CRC-32 of UTF-8), never 0: that means absent."""
    return zlib.crc32(word.encode()) or 1


class _Codes(dict[str | None, int]):
    """Dictionary codes in order of first appearance; None and the empty word are absent."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self[None] = self[""] = int(NO_CODE)

    def __missing__(self, word: str) -> int:
        code = self[word] = len(self.words)
        self.words.append(word)
        return code


class _Keys(dict[str | None, int]):
    """Cache of `stable_key`; absent is 0."""

    def __missing__(self, word: str | None) -> int:
        if len(self) > 200_000:
            self.clear()
        key = self[word] = stable_key(word) if word else 0
        return key


class _OutcomeCodes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        return UNKNOWN_OUTCOME_CODE


class EventFramer:
    """Decodes, validates and de-duplicates JSON events.

    A request is a duplicate when its pool, node and request_id were seen within about `dedup_window_s` of its event time; a
    request without an identifier is never one.

    Args:
        dedup_window_s: Event time over which identifiers are remembered, seconds.
        max_ids: Identifiers remembered at most.
    """

    def __init__(self, dedup_window_s: float = 60.0, max_ids: int = 1_000_000) -> None:
        self._decode = msgspec.json.Decoder(Event).decode
        self._recent = RecentIds(dedup_window_s, max_ids)
        self._sessions = _Keys()
        self._outcomes = _OutcomeCodes(OUTCOME_CODES)

    def feed(self, raw: Sequence[bytes], offsets: Sequence[int] | None = None) -> Framed:
        """Columns of many events.

        Args:
            raw: One JSON object each.
            offsets: Growing offset of each event in its source; positions in `raw` when None.
        """
        where: Sequence[int] = range(len(raw)) if offsets is None else offsets
        rejects: list[Reject] = []
        return self.frame(self._parse(raw, where, rejects), raw, where, rejects)

    def frame(
        self,
        events: Sequence[RequestEvent | StateEvent | None],
        raw: Sequence[bytes],
        where: Sequence[int],
        rejects: list[Reject],
    ) -> Framed:
        """Columns of events that something else decoded: the rows of a CSV or Parquet file.

        Args:
            events: One for each of `raw`; None where `rejects` already says why there is none.
            raw: Bytes of each event, for refusals.
            where: Growing offset of each event.
            rejects: Refusals so far; becomes part of the result.
        """
        out = Framed(rejects=rejects, n_events=len(events))
        other = [i for i, event in enumerate(events) if type(event) is not RequestEvent]
        if other:
            for i in other:
                self._state_event(events[i], raw[i], where[i], out)
            requests = [event for event in events if type(event) is RequestEvent]
            position = np.delete(np.arange(len(events)), other)
        else:
            requests, position = events, np.arange(len(events))  # type: ignore[assignment]  # nothing but requests in it
        if requests:
            self._requests(requests, position, raw, where, out)
        out.rejects.sort(key=lambda reject: reject.offset)
        return out

    def _parse(self, raw: Sequence[bytes], where: Sequence[int], rejects: list[Reject]) -> list[RequestEvent | StateEvent | None]:
        """One entry per line, None for a refused one. A bad line costs itself: `extend` keeps what the iterator gave before
        the error and the iterator goes on behind it.
        """
        events: list[RequestEvent | StateEvent | None] = []
        lines: Iterable[bytes] = raw
        if raw and max(map(len, raw)) > MAX_EVENT_BYTES:
            lines = [line if len(line) <= MAX_EVENT_BYTES else b"" for line in raw]
        decoded = map(self._decode, lines)
        while True:
            try:
                events.extend(decoded)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                i = len(events)
                rejects.append(Reject(raw[i], *why(raw[i], exc), where[i]))
                events.append(None)
            else:
                return events

    def _state_event(self, event: object, raw: bytes, offset: int, out: Framed) -> None:
        if not isinstance(event, NodeEvent | GpuEvent | DeployEvent | OverrideEvent):
            return  # already refused
        fault = state_fault(event)
        if fault is not None:
            out.rejects.append(Reject(raw, *fault, offset))
            return
        rows = out.pools.get(event.pool)
        if rows is None:
            rows = out.pools[event.pool] = PoolRows(_no_rows(event.pool), np.empty(0, np.int64))
        rows.events.append(event)
        rows.event_offset.append(offset)

    def _requests(
        self, requests: list[RequestEvent], position: NDArray[np.intp], raw: Sequence[bytes], where: Sequence[int], out: Framed
    ) -> None:
        pools, nodes, adapters, tenants = _Codes(), _Codes(), _Codes(), _Codes()
        outcomes, sessions = self._outcomes, self._sessions
        ts_s = np.array([e.ts for e in requests])
        latency_s = np.array(
            [
                [e.ttft_s for e in requests],
                [e.tpot_s for e in requests],
                [e.queue_s for e in requests],
                [e.e2e_s for e in requests],
            ],
            np.float64,
        )
        outcome = np.array([outcomes[e.outcome] for e in requests], np.uint8)
        ts_bad = ~((ts_s >= 0) & (ts_s < MAX_TS_S))
        faults = row_faults(ts_bad, latency_s, outcome)
        counts = {}
        for name, values in (
            ("prompt_tokens", [e.prompt_tokens for e in requests]),
            ("output_tokens", [e.output_tokens for e in requests]),
            ("cached_tokens", [e.cached_tokens for e in requests]),
            ("batch_size", [e.batch_size for e in requests]),
        ):
            counts[name], bad_count = _counts(values)
            faults[bad_count & (faults == 0)] = CODE["bad_count"]
        latency_s[1, blank_tpot(latency_s, counts["output_tokens"])] = np.nan
        ts_ns = np.rint(np.where(ts_bad, 0.0, ts_s) * 1e6).astype(np.int64) * 1000
        pool = np.array([pools[e.pool] for e in requests], np.uint32)
        batch = RequestBatch(
            pool="",
            nodes=nodes.words,
            node=np.array([nodes[e.node] for e in requests], np.uint32),
            ts_ns=ts_ns,
            latency_s=np.clip(latency_s, -1e9, 1e9).astype(np.float32),  # refused rows need not fit
            outcome=outcome,
            probe=_probe(requests),
            adapters=adapters.words,
            adapter=np.array([adapters[e.adapter] for e in requests], np.uint32),
            tenants=tenants.words,
            tenant=np.array([tenants[e.tenant] for e in requests], np.uint32),
            session=np.array([sessions[e.session] for e in requests], np.uint32),
            kv_mismatch=_mismatch(requests),
            **counts,
        )
        keep = faults == 0
        for i in np.flatnonzero(faults):
            at = int(position[i])
            reason = REASONS[faults[i]]
            out.rejects.append(Reject(raw[at], reason, request_detail(requests[i], reason), where[at]))
        if not keep.all():
            rows = np.flatnonzero(keep)
            requests = [requests[i] for i in rows]
            batch, pool, position = batch.take(rows), pool[rows], position[rows]
        fresh = self._first_seen(requests, batch, pools.words, pool)
        if not fresh.all():
            out.duplicates = [where[i] for i in position[~fresh]]
            batch, pool, position = batch.take(fresh), pool[fresh], position[fresh]
        offsets = np.arange(where.start, where.stop, where.step) if isinstance(where, range) else np.asarray(where, np.int64)
        _split(batch, pools.words, pool, offsets[position], out)

    def _first_seen(
        self, requests: list[RequestEvent], batch: RequestBatch, pools: list[str], pool: NDArray[np.uint32]
    ) -> NDArray[np.bool_]:
        ids = [e.request_id for e in requests]
        if not any(ids):
            return np.ones(len(ids), np.bool_)
        key = np.array([hash(i) for i in ids], np.int64).view(np.uint64)
        stream, row = np.unique(pool.astype(np.uint64) << np.uint64(32) | batch.node, return_inverse=True)
        salt = np.array([hash((pools[int(s) >> 32], batch.nodes[int(s) & 0xFFFFFFFF])) for s in stream], np.int64).view(np.uint64)
        key = key * np.uint64(0x9E3779B97F4A7C15) ^ salt[row]
        named = np.array([bool(i) for i in ids])
        if named.all():
            return self._recent.fresh(key, batch.ts_ns)
        fresh = np.ones(len(ids), np.bool_)
        fresh[named] = self._recent.fresh(key[named], batch.ts_ns[named])
        return fresh


def _split(batch: RequestBatch, pools: list[str], pool: NDArray[np.uint32], offset: NDArray[np.int64], out: Framed) -> None:
    """Rows of each pool, with dictionaries that hold the words of these rows alone."""
    for code, name in enumerate(pools):
        rows = np.flatnonzero(pool == code)
        if len(rows) == 0:
            continue
        part = rows_of(batch, rows, name)
        earlier = out.pools.get(name)
        if earlier is None:
            out.pools[name] = PoolRows(part, offset[rows])
        else:
            earlier.batch, earlier.row_offset = part, offset[rows]


def rows_of(batch: RequestBatch, rows: NDArray[np.intp], pool: str) -> RequestBatch:
    """Some rows of a batch as those of `pool`, with dictionaries that hold their words alone."""
    part = batch if len(rows) == len(batch) else batch.take(rows)
    part = replace(part, pool=pool)
    part.nodes, part.node = _compact(part.nodes, part.node)
    part.adapters, part.adapter = _compact(part.adapters, part.adapter)
    part.tenants, part.tenant = _compact(part.tenants, part.tenant)
    return part


def _compact(words: list[str], codes: NDArray[np.uint32]) -> tuple[list[str], NDArray[np.uint32]]:
    used = np.zeros(len(words) + 1, np.bool_)
    used[np.minimum(codes, len(words))] = True
    used = used[:-1]
    if used.all():
        return words, codes
    dense = np.append(np.cumsum(used, dtype=np.uint32) - np.uint32(1), NO_CODE)
    return [word for word, keep in zip(words, used, strict=True) if keep], dense[np.minimum(codes, len(words))]


def _counts(values: list[int | None]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    try:
        count = np.array(values, np.float64)
    except OverflowError:  # an integer beyond float64: refuse it, keep the others
        count = np.array([v if v is None or abs(v) < 2**40 else -1 for v in values], np.float64)
    unknown = np.isnan(count)
    bad = (count < 0) | (count >= float(UNKNOWN_TOKENS))
    count[unknown | bad] = float(UNKNOWN_TOKENS)
    return count.astype(np.uint32), bad


def _probe(requests: list[RequestEvent]) -> NDArray[np.int8]:
    said = [-1 if e.probe is None else host_number(e.probe_host) if e.probe and e.probe_host else e.probe for e in requests]
    return np.array(said, np.int8)


def _mismatch(requests: list[RequestEvent]) -> NDArray[np.bool_]:
    return np.array(
        [
            e.kv_slot_expected != e.kv_slot_actual and e.kv_slot_expected is not None and e.kv_slot_actual is not None
            for e in requests
        ],
        np.bool_,
    )


def _no_rows(pool: str) -> RequestBatch:
    u32, none = np.empty(0, np.uint32), np.empty(0, np.uint8)
    return RequestBatch(
        pool=pool, nodes=[], node=u32, ts_ns=np.empty(0, np.int64), latency_s=np.empty((4, 0), np.float32), outcome=none,
        prompt_tokens=u32, output_tokens=u32, cached_tokens=u32, batch_size=u32, probe=np.empty(0, np.int8), adapters=[],
        adapter=u32, tenants=[], tenant=u32, session=u32, kv_mismatch=np.empty(0, np.bool_),
    )  # fmt: skip
