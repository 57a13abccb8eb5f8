"""Blocks of windows survive the wire; what is not one is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from schemas.errors import SchemaError
from schemas.windows import decode_windows, encode_windows


def test_round_trip_keeps_numbers_unknowns_and_words() -> None:
    columns = {
        "node": ["a", "b", "a"],
        "kl_nats": np.array([0.5, np.nan, 2.0], np.float32),
        "n": np.array([1, 2, 3], np.int64).astype(np.uint32),
        "alarm": np.array([True, False, True]),
        "p999_s": np.array([1.0, 2.0, 3.0]),
    }
    block = decode_windows(encode_windows("p", 1234567, columns))
    assert (block.pool, block.t_ms, block.n) == ("p", 1234567, 3)
    assert block.columns["node"] == ["a", "b", "a"]
    assert np.array_equal(block.columns["kl_nats"], columns["kl_nats"], equal_nan=True)
    assert block.columns["alarm"].tolist() == [True, False, True]
    assert block.columns["p999_s"].dtype == np.float32


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="columns of 2 rows: b differ"):
        encode_windows("p", 0, {"a": ["x", "y"], "b": ["x"]})


def test_no_series_is_a_block_too() -> None:
    assert decode_windows(encode_windows("p", 0, {"node": [], "n": np.empty(0, np.uint32)})).n == 0


@pytest.mark.parametrize("cut", [b"", b"x", b"\x80", encode_windows("p", 0, {"node": ["a"]})[:-1]])
def test_rubbish_is_refused(cut: bytes) -> None:
    with pytest.raises(SchemaError, match="bad_windows"):
        decode_windows(cut)


def test_codes_and_sizes_are_checked() -> None:
    wire = msgspec.msgpack.decode(encode_windows("p", 0, {"node": ["a"], "n": np.ones(1, np.uint32)}))
    wire["words"]["node"]["codes"] = b"\x01\x00\x00\x00"
    with pytest.raises(SchemaError, match="column node"):
        decode_windows(msgspec.msgpack.encode(wire))
    wire["words"]["node"]["codes"] = b"\x00\x00\x00\x00"
    wire["numbers"]["n"]["raw"] = b"\x00"
    with pytest.raises(SchemaError, match="column n"):
        decode_windows(msgspec.msgpack.encode(wire))
