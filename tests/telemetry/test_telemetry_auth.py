"""Authenticated telemetry: a writer speaks for itself alone, every byte counts, and readers without keys notice nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.batch import RequestBatch
from schemas.errors import ConfigError
from schemas.frame import FrameHeader, decode_frame, encode_event_frame, encode_request_frame
from schemas.telemetry import DeployEvent, NodeEvent, OverrideEvent, RequestEvent, StateEvent
from schemas.telemetry_auth import Authenticator, Writer, derive_key, parse_masters
from streams.framing import EventFramer
from streams.simulate.output import EventProducer

MASTER = bytes(range(32))
AUTH = Authenticator([MASTER])
NODE = Writer("node/n1", derive_key(MASTER, "node/n1"))


def event(node: str = "n1", **fields: Any) -> bytes:
    return msgspec.json.encode(
        {"kind": "request", "ts": 1e9, "pool": "p", "node": node, "outcome": "ok", "ttft_s": 0.2, **fields}
    )


def request_frame(node: str = "n1", origin: str | None = None) -> bytes:
    u32 = np.zeros(3, np.uint32)
    batch = RequestBatch(
        pool="p", nodes=[node], node=u32, ts_ns=np.arange(3) * 10**9, latency_s=np.full((4, 3), 0.2, np.float32),
        outcome=np.zeros(3, np.uint8), prompt_tokens=u32, output_tokens=u32, cached_tokens=u32, batch_size=u32,
        probe=np.full(3, -1, np.int8), adapters=[], adapter=~u32, tenants=[], tenant=~u32, session=u32,
        kv_mismatch=np.zeros(3, np.bool_),
    )  # fmt: skip
    return encode_request_frame(FrameHeader(pool="p", node=node, origin=origin), batch)


def event_frame(*events: StateEvent) -> bytes:
    return encode_event_frame(FrameHeader(pool="p", node=""), list(events))


def state(node: str) -> NodeEvent:
    return NodeEvent(ts=1.0, pool="p", node=node, running=1)


ORDER = OverrideEvent(
    ts=1.0, pool="p", subject="n2", state="FORCED_OPEN", reason="fan", operator="ada", id="12345678", start=2.0, end=9.0
)


def word(fault: tuple[str, str] | None) -> str:
    return "" if fault is None else fault[0]


def test_sealed_events_are_authentic_and_read_as_before() -> None:
    sealed = NODE.seal_event(event())
    assert AUTH.event_fault(sealed) is None
    plain, with_mac = EventFramer().feed([event()]), EventFramer().feed([sealed])
    assert with_mac.rejects == []
    assert np.array_equal(plain.pools["p"].batch.latency_s, with_mac.pools["p"].batch.latency_s, equal_nan=True)


@pytest.mark.parametrize("frame", [request_frame(), event_frame(state("n1"))])
def test_sealed_frames_are_authentic_and_read_as_before(frame: bytes) -> None:
    sealed = NODE.seal_frame(frame)
    assert AUTH.frame_fault(sealed) is None
    before, after = decode_frame(frame), decode_frame(sealed)
    assert before.header == after.header
    assert type(before) is type(after)


def test_without_a_mac_nothing_is_authentic_but_orders() -> None:
    assert word(AUTH.event_fault(event())) == "no_mac"
    assert word(AUTH.frame_fault(request_frame())) == "no_mac"
    assert word(AUTH.frame_fault(event_frame(state("n1")))) == "no_mac"
    assert word(AUTH.frame_fault(event_frame(ORDER, state("n1")))) == "no_mac"
    assert AUTH.event_fault(msgspec.json.encode(ORDER)) is None
    assert AUTH.frame_fault(event_frame(ORDER)) is None


def test_a_node_speaks_for_itself_alone_and_a_gateway_for_all() -> None:
    gateway = AUTH.writer("gateway/lb-1")
    assert word(AUTH.event_fault(NODE.seal_event(event("n2")))) == "not_its_own"
    assert word(AUTH.frame_fault(NODE.seal_frame(request_frame("n2")))) == "not_its_own"
    assert word(AUTH.frame_fault(NODE.seal_frame(event_frame(state("n1"), state("n2"))))) == "not_its_own"
    assert word(AUTH.frame_fault(NODE.seal_frame(request_frame("n1", origin="telemetry.requests/0")))) == "not_its_own"
    assert word(AUTH.event_fault(NODE.seal_event(msgspec.json.encode({"kind": "deploy", "ts": 1, "pool": "p"})))) == "not_its_own"
    assert AUTH.event_fault(gateway.seal_event(event("n2"))) is None
    assert AUTH.frame_fault(gateway.seal_frame(event_frame(state("n1"), state("n2")))) is None
    assert AUTH.frame_fault(AUTH.writer("framer").seal_frame(request_frame("n7", origin="telemetry.requests/0"))) is None


def test_a_name_is_no_key() -> None:
    """Whoever holds the key of n1 cannot write as another node, as a gateway or as the framer."""
    key = derive_key(MASTER, "node/n1")
    for name in ("node/n2", "gateway/n1", "framer", "", "root/n1"):
        assert word(AUTH.event_fault(Writer(name, key).seal_event(event("n2")))) == "bad_mac"
        assert word(AUTH.frame_fault(Writer(name, key).seal_frame(request_frame("n2")))) == "bad_mac"
    assert derive_key(MASTER, "node/n1") != derive_key(bytes(32), "node/n1")


def test_a_field_that_occurs_twice_deceives_nobody() -> None:
    twice = event("n1")[:-1] + b',"node":"n2"}'
    assert word(AUTH.event_fault(NODE.seal_event(twice))) == "not_its_own"
    behind = NODE.seal_event(event("n1"))[:-1] + b',"node":"n2"}'
    assert word(AUTH.event_fault(behind)) == "no_mac"
    for kinds in (b'"kind":"request","kind":"override"', b'"kind":"override","kind":"request"'):
        assert word(AUTH.event_fault(event("n2").replace(b'"kind":"request"', kinds))) == "no_mac"
    inner = NODE.seal_event(NODE.seal_event(event("n1")))  # the last one counts
    assert AUTH.event_fault(inner) is None


@given(st.data())
def test_every_bit_counts(data: st.DataObject) -> None:
    for sealed, fault in ((NODE.seal_event(event()), AUTH.event_fault), (NODE.seal_frame(request_frame()), AUTH.frame_fault)):
        bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << (bit % 8)
        assert fault(bytes(changed)) is not None


@given(st.binary(max_size=200))
def test_nothing_raises(junk: bytes) -> None:
    assert AUTH.event_fault(junk) is not None
    assert AUTH.frame_fault(junk) is not None


def test_rotation_of_the_master() -> None:
    both = Authenticator([bytes(32), MASTER])
    assert both.event_fault(NODE.seal_event(event())) is None
    assert Authenticator([bytes(32)]).event_fault(NODE.seal_event(event())) is not None
    assert both.event_fault(both.writer("node/n1").seal_event(event())) is None


@pytest.mark.parametrize("text", ["", "xyz", "00" * 31, "00" * 32 + ",", "secret-canary-value"])
def test_keys_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_masters(text)
    assert "canary" not in str(caught.value)


def test_secrets_are_not_in_reprs() -> None:
    for thing in (AUTH, NODE):
        assert MASTER.hex() not in repr(thing)
        assert str(derive_key(MASTER, "node/n1")) not in repr(thing)


def test_simulated_telemetry_is_sealed_by_whom_it_is_about() -> None:
    producer = EventProducer.__new__(EventProducer)  # its broker is not needed
    producer._auth = AUTH
    request = RequestEvent(ts=1.0, pool="p", node="n1", outcome="ok")
    for event, writer in ((request, b"node/n1"), (state("n7"), b"node/n7"), (DeployEvent(ts=1.0, pool="p"), b"gateway/simulate")):
        sealed = producer._sealed(event)
        assert AUTH.event_fault(sealed) is None
        assert b'"mac_by":"' + writer in sealed
    assert AUTH.event_fault(producer._sealed(ORDER)) is None
    producer._auth = None
    assert b"mac" not in producer._sealed(request)
