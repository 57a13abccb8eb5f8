"""Inputs of a replay: formats, compression, mapping, errors that say what to do."""

from __future__ import annotations

import gzip
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd

from schemas.errors import ConfigError, SourceError
from streams.framing import EventFramer
from streams.framing_rejects import MAX_EVENT_BYTES
from streams.sources.csv_map import csv_chunks
from streams.sources.files import file_kind
from streams.sources.inputs import Inputs
from streams.sources.jsonl import jsonl_chunks
from streams.sources.mapping import ColumnMap, epoch_s, parse_map
from streams.sources.parquet import parquet_chunks

T0 = 1_767_225_600.0


def request(**fields: Any) -> bytes:
    return json.dumps({"kind": "request", "ts": T0, "pool": "p", "node": "n", "outcome": "ok", "ttft_s": 0.2} | fields).encode()


LINES = [request(ts=T0 + i) for i in range(5)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\r\n \n"])
def test_jsonl_plain_and_compressed(tmp_path: Path, pack: Any, end: bytes) -> None:
    path = tmp_path / "events"
    path.write_bytes(pack(b"\xef\xbb\xbf" + b"\n".join(LINES) + end))
    chunks = list(jsonl_chunks(str(path), EventFramer()))
    assert not any(framed.rejects for framed in chunks)
    assert [n for framed in chunks for n in framed.pools["p"].row_offset] == [1, 2, 3, 4, 5]


def test_offsets_are_line_numbers_across_chunks_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([LINES[0], b"", LINES[1], b"rubbish", b"", LINES[2]]))
    chunks = list(jsonl_chunks(str(path), EventFramer(), chunk_lines=2))
    assert [n for c in chunks for n in (c.pools["p"].row_offset.tolist() if c.pools else [])] == [1, 3, 6]
    assert [r.offset for c in chunks for r in c.rejects] == [4]


def test_endless_line_is_one_refusal_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(LINES[0] + b"\n" + b"x" * (5 << 20) + b"\n" + LINES[1])
    rejects = [r for c in jsonl_chunks(str(path), EventFramer()) for r in c.rejects]
    assert [(r.reason, r.offset) for r in rejects] == [("too_large", 2)]
    assert len(rejects[0].raw) <= MAX_EVENT_BYTES + 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"\n".join(LINES))

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert sum(c.n_events for c in jsonl_chunks("-", EventFramer())) == 5


def test_missing_and_damaged_files_are_source_errors(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere.jsonl: cannot be read: No such file"):
        list(jsonl_chunks(str(tmp_path / "nowhere.jsonl"), EventFramer()))
    with pytest.raises(SourceError, match="cannot be read"):
        list(jsonl_chunks(str(tmp_path), EventFramer()))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"\n".join(LINES * 1000))[:-20])
    with pytest.raises(SourceError, match="damaged or cut off"):
        list(jsonl_chunks(str(cut), EventFramer()))
    torn = tmp_path / "torn.jsonl.zst"
    torn.write_bytes(zstd.compress(b"\n".join(LINES))[:6] + b"garbage")
    with pytest.raises(SourceError, match="damaged or cut off"):
        list(jsonl_chunks(str(torn), EventFramer()))


@pytest.mark.parametrize(
    ("path", "mapped", "kind"),
    [("a.jsonl.gz", False, "jsonl"), ("a.CSV", False, "csv"), ("a.csv.gz", True, "csv"), ("a.tsv.zst", False, "csv"),
     ("x/a.parquet", False, "parquet"), ("-", False, "jsonl"), ("-", True, "csv"), ("a.log", False, "jsonl")],
)  # fmt: skip
def test_kind_of_file(path: str, mapped: bool, kind: str) -> None:
    assert file_kind(path, mapped) == kind


def read_csv(tmp_path: Path, text: str, *mapping: str) -> Any:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    (framed,) = csv_chunks(str(path), EventFramer(), mapping)
    return framed


def test_csv_with_two_columns(tmp_path: Path) -> None:
    framed = read_csv(
        tmp_path, "timestamp,value\n2014-03-07 03:41:00,45.868\n2014-03-07 03:46:00,47.606\n", "ts=timestamp,ttft_s=value"
    )
    batch = framed.pools["default"].batch
    assert batch.nodes == ["n1"]
    assert batch.ts_ns[0] == round(datetime(2014, 3, 7, 3, 41, tzinfo=UTC).timestamp()) * 10**9
    np.testing.assert_allclose(batch.latency_s[0], [45.868, 47.606], rtol=1e-6)
    assert batch.outcome.tolist() == [0, 0]


def test_csv_constants_columns_and_odd_headers(tmp_path: Path) -> None:
    text = (
        '\ufeffTime Stamp;"p99, ms";host;code;tokens;probe\n1767225600000;0.5;h-1;server_error;12.0;TRUE\n1767225601;;h-2;ok;;0\n'
    )
    framed = read_csv(
        tmp_path, text, "ts=time stamp", '"ttft_s=p99, ms",node=host', "pool=:eu,outcome=code,output_tokens=tokens,probe=probe"
    )
    batch = framed.pools["eu"].batch
    assert not framed.rejects
    assert batch.nodes == ["h-1", "h-2"]
    assert batch.ts_ns.tolist() == [1767225600 * 10**9, 1767225601 * 10**9]
    assert batch.outcome.tolist() == [4, 0]
    assert np.isnan(batch.latency_s[0, 1])
    assert batch.output_tokens[0] == 12
    assert batch.probe.tolist() == [1, 0]


def test_csv_named_like_the_fields_needs_no_map(tmp_path: Path) -> None:
    assert len(read_csv(tmp_path, "ts,node,e2e_s\n1767225600,a,1.5\n").pools["default"].batch) == 1


def test_csv_bad_cells_are_refused_with_row_number_and_bytes(tmp_path: Path) -> None:
    text = "ts,v,o\nnoon,1,ok\n1,fast,ok\n1,-2,ok\n1,1e9,ok\n1,inf,ok\n,1,ok\n1\n1,1,nope\n\n1,1,ok\n"
    framed = read_csv(tmp_path, text, "ts=ts,e2e_s=v,outcome=o")
    assert [(r.offset, r.reason) for r in framed.rejects] == [
        (2, "bad_timestamp"), (3, "bad_type"), (4, "negative_latency"), (5, "latency_too_large"), (6, "nan_or_inf"),
        (7, "missing_field"), (8, "missing_field"), (9, "unknown_outcome"),
    ]  # fmt: skip
    assert framed.rejects[1].raw == b'["1","fast","ok"]'
    assert framed.pools["default"].row_offset.tolist() == [11]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (("ts=when,ttft_s=value",), r"no column 'when'; columns there: timestamp, value"),
        (("ts=timestamp",), r"no column gives one of ttft_s.*--map ts=COLUMN.*columns there: timestamp, value"),
        ((), r"no column gives ts and one of"),
        (("ts=timestamp,speed=value",), r"there is no field 'speed'; fields are ts, pool"),
        (("ts",), r"write FIELD=COLUMN"),
        (("ts=timestamp,ts=value",), r"names 'ts' twice"),
    ],
)
def test_wrong_mapping_says_what_is_there(tmp_path: Path, mapping: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_csv(tmp_path, "timestamp,value\n1,1\n", *mapping)


def test_ambiguous_column_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 columns are called 'v'"):
        read_csv(tmp_path, "ts,v,v\n1,1,1\n", "ts=ts,e2e_s=v")
    with pytest.raises(ConfigError, match="the first row must name the columns"):
        read_csv(tmp_path, "", "ts=ts,e2e_s=v")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1767225600", T0), (1767225600.25, T0 + 0.25), ("1767225600250", T0 + 0.25), ("1767225600250000", T0 + 0.25),
        (1767225600250000000, T0 + 0.25), ("2026-01-01 00:00:00", T0), ("2026-01-01T00:00:00Z", T0),
        ("2026-01-01T02:00:00+02:00", T0), ("2026-01-01T00:00:00.250000", T0 + 0.25), (datetime(2026, 1, 1), T0),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_timestamps(value: Any, seconds: float) -> None:
    assert epoch_s(value) == pytest.approx(seconds, abs=1e-6)


def test_map_is_split_like_csv() -> None:
    assert parse_map(['ts=a, "ttft_s=b, c"', "node=: n 1"]) == {"ts": "a", "ttft_s": "b, c", "node": ": n 1"}
    assert ColumnMap(["ts=a,e2e_s=b,pool=:x"], ["a", "b"], "f").columns == {"ts": 0, "e2e_s": 1}


def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "when": pa.array([datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 1)], pa.timestamp("ms")),  # noqa: DTZ001
            "latency": pa.array([0.5, None]),
            "host": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    framed = list(parquet_chunks(str(path), EventFramer(), ["ts=when,ttft_s=latency,node=host"], chunk_rows=1))
    assert [f.pools["default"].batch.ts_ns[0] for f in framed] == [round(T0) * 10**9, round(T0 + 1) * 10**9]
    assert np.isnan(framed[1].pools["default"].batch.latency_s[0, 0])
    (tmp_path / "no.parquet").write_text("not parquet")
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        list(parquet_chunks(str(tmp_path / "no.parquet"), EventFramer(), ["ts=when,ttft_s=latency"]))
    with pytest.raises(SourceError, match="no such file"):
        list(parquet_chunks(str(tmp_path / "none.parquet"), EventFramer(), []))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'slodrift\[parquet\]'"):
        list(parquet_chunks(str(tmp_path / "x.parquet"), EventFramer(), []))


def test_a_copy_in_another_file_counts_once(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(request(request_id="r-1"))
    inputs = Inputs([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    rows = [len(rows.batch) for part in inputs.slices(5.0, 10.0) for rows in part.pools.values()]
    assert sum(rows) == 1
    assert sum(stats.duplicates for stats in inputs.stats) == 1
