import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.batch import RequestBatch
from schemas.frame import EventFrame, FrameHeader, RequestFrame, decode_frame, encode_request_frame
from schemas.frame_bulk import encode_request_frames
from streams import framer_cut
from streams.framer_cut import MAX_FRAME_BYTES, MAX_ROWS, cut_frames
from streams.framing import EventFramer

T0_S = 1_767_225_600.0


def request(i: int, **fields: object) -> bytes:
    base: dict[str, object] = {
        "kind": "request",
        "ts": T0_S + i,
        "pool": "p",
        "node": "n",
        "outcome": "ok",
        "ttft_s": 0.1 + i * 1e-4,
    }
    return json.dumps(base | fields).encode()


def frames_of(lines: list[bytes], first_offset: int = 0) -> list[tuple[str, RequestFrame | EventFrame]]:
    framed = EventFramer().feed(lines, list(range(first_offset, first_offset + len(lines))))
    assert not framed.rejects
    return [(pool, decode_frame(raw)) for pool, raw in cut_frames(framed, "telemetry.requests", 3)]


optional = {
    "ttft_s": st.floats(0, 100), "queue_s": st.floats(0, 100), "prompt_tokens": st.integers(0, 10**6),
    "probe": st.booleans(), "session": st.sampled_from(["a", "b"]), "adapter": st.sampled_from(["x", "y", "z"]),
    "tenant": st.sampled_from(["t", "u"]), "kv_slot_expected": st.just(1), "kv_slot_actual": st.integers(1, 2),
}  # fmt: skip
rows = st.lists(
    st.tuples(
        st.fixed_dictionaries({"node": st.sampled_from(["n1", "n2", "n3"]), "pool": st.sampled_from(["p", "q"])}),
        st.fixed_dictionaries({}, optional=optional),  # type: ignore[arg-type]
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(rows, st.integers(0, 2**40))
def test_frames_hold_every_row_once_and_are_those_of_the_plain_encoder(
    parts: list[tuple[dict[str, str], dict[str, object]]], first: int
) -> None:
    lines = [request(i, **{**where, **more}) for i, (where, more) in enumerate(parts)]
    framed = EventFramer().feed(lines, list(range(first, first + len(lines))))
    got = [(pool, raw) for pool, raw in cut_frames(framed, "t", 0)]
    want = []
    for pool, rows_of_pool in framed.pools.items():
        batch, offset = rows_of_pool.batch, rows_of_pool.row_offset
        for code, node in enumerate(batch.nodes):
            mine = np.flatnonzero(batch.node == code)
            header = FrameHeader(pool=pool, node=node, origin="t/0")
            want.append((pool, encode_request_frame(header, batch.take(mine), offset[mine])))
    assert got == want
    offsets = sorted(int(o) for _, raw in got for o in offsets_of(decode_frame(raw)))
    assert offsets == list(range(first, first + len(lines)))


def offsets_of(frame: RequestFrame | EventFrame) -> list[int]:
    if isinstance(frame, EventFrame):
        return list(frame.offsets)
    assert frame.origin_offset is not None
    return [int(offset) for offset in frame.origin_offset]


def test_frames_are_short_and_offsets_grow_for_each_node() -> None:
    frames = frames_of([request(i % 60, node=f"n{i % 3}") for i in range(4000)], first_offset=10**9)
    seen: dict[tuple[str | None, str], int] = defaultdict(lambda: -1)
    for _, frame in frames:
        assert len(offsets_of(frame)) <= MAX_ROWS
        key = (frame.header.origin, frame.header.node)
        offsets = offsets_of(frame)
        assert offsets == sorted(set(offsets))
        assert offsets[0] > seen[key]
        seen[key] = offsets[-1]
    assert sum(len(offsets_of(f)) for _, f in frames) == 4000
    assert len(frames) == 3 * 2  # 1,333 rows of a node are two frames


def test_wild_timestamps_are_cut_apart_and_stay_in_order() -> None:
    lines = [request(0, ts=T0_S), request(0, ts=T0_S + 9e6), request(0, ts=T0_S + 1), request(0, ts=T0_S + 2)]
    frames = [frame for _, frame in frames_of(lines)]
    assert [offsets_of(frame) for frame in frames] == [[0], [1], [2, 3]]
    times = [t for f in frames if isinstance(f, RequestFrame) for t in (f.batch.ts_ns / 1e9 - T0_S).tolist()]
    assert times == [0, 9e6, 1, 2]


def test_state_events_are_frames_of_their_own() -> None:
    node = {"kind": "node", "ts": T0_S, "pool": "p", "node": "n", "running": 1}
    lines = [request(0), json.dumps(node).encode(), request(1)]
    (_, requests), (_, events) = frames_of(lines)
    assert requests.header.origin == "telemetry.requests/3"
    assert offsets_of(requests) == [0, 2]
    assert events.header.origin == "telemetry.requests/3"
    assert offsets_of(events) == [1]
    assert isinstance(events, EventFrame)
    assert events.events[0].node == "n"


def test_no_frame_is_too_large_for_the_broker() -> None:
    long = [request(i, adapter=f"{i}" + "x" * 30_000) for i in range(100)]
    deploys = [json.dumps({"kind": "deploy", "ts": T0_S, "pool": "p", "what": "y" * 30_000}).encode() for _ in range(100)]
    framed = EventFramer().feed(long + deploys)
    raws = [raw for _, raw in cut_frames(framed, "t", 0)]
    assert max(map(len, raws)) <= MAX_FRAME_BYTES
    assert sorted(o for raw in raws for o in offsets_of(decode_frame(raw))) == list(range(200))


def test_many_small_runs_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs need not be whole nodes."""
    monkeypatch.setattr(framer_cut, "MAX_ROWS", 7)
    frames = frames_of([request(i, adapter=f"a{i % 5}") for i in range(50)])
    assert [len(offsets_of(f)) for _, f in frames] == [7] * 7 + [1]
    words = [f.batch.adapters[f.batch.adapter[0]] for _, f in frames if isinstance(f, RequestFrame)]
    assert words == [f"a{i % 5}" for i in range(0, 50, 7)]


def test_bulk_encoder_takes_the_widest_offsets() -> None:
    batch: RequestBatch = EventFramer().feed([request(0), request(1)]).pools["p"].batch
    offset = np.array([5, 5 + 2**32 - 1])
    ((n, raw),) = encode_request_frames("t/0", batch, offset, np.array([0]))
    assert n == 2
    assert offsets_of(decode_frame(raw)) == offset.tolist()
