"""Dead letters survive the round trip through a Kafka message, whatever the bytes were."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deadletter import MAX_BYTES, DeadLetter, from_message, to_message
from schemas.errors import SchemaError


@given(st.binary(max_size=300), st.text(max_size=50), st.integers(0, 2**62))
def test_round_trip(raw: bytes, detail: str, offset: int) -> None:
    detail = detail.encode("utf-8", "replace").decode()
    letter = DeadLetter(raw=raw, stage="decode", reason="bad_frame", detail=detail, topic="t", partition=3, offset=offset)
    key, value, headers = to_message(letter)
    back = from_message(value, headers)
    assert (key, value) == (b"t/3", raw)
    assert (back.raw, back.stage, back.reason, back.detail, back.offset) == (raw, "decode", "bad_frame", detail, offset)
    assert back.sha256 == hashlib.sha256(raw).hexdigest()
    assert not back.truncated


def test_long_value_is_cut_and_says_so() -> None:
    raw = b"x" * (MAX_BYTES + 1)
    _, value, headers = to_message(DeadLetter(raw=raw, stage="decode", reason="bad_frame"))
    back = from_message(value, headers)
    assert len(value) == MAX_BYTES
    assert back.truncated
    assert back.size_bytes == MAX_BYTES + 1
    assert back.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("headers", [None, [], [("slodrift.stage", b"decode")], [("slodrift.offset", b"nine")]])
def test_what_is_no_dead_letter_is_refused(headers: list[tuple[str, bytes]] | None) -> None:
    with pytest.raises(SchemaError, match="bad_dead_letter"):
        from_message(b"", headers)
