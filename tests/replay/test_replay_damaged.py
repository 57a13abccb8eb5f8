"""Recordings that were cut off or damaged: judged as far as they go, and never a success."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from streams.cli import main

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T0 = 1_767_225_600.0
N = 6000


def lines(csv: bool) -> bytes:
    noise = Random(0)
    value = [f"{0.1 + noise.random() / 10:.17f}" for _ in range(N)]
    if csv:
        return b"ts,node,ttft_s\n" + b"".join(b"%.3f,n%d,%s\n" % (T0 + i / 30, i % 3, v.encode()) for i, v in enumerate(value))
    event = '{"kind":"request","ts":%.3f,"pool":"p","node":"n%d","outcome":"ok","ttft_s":%s}\n'
    return "".join(event % (T0 + i / 30, i % 3, v) for i, v in enumerate(value)).encode()


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[dict], str]:
    with pytest.raises(SystemExit) as done:
        main(["replay", *args, "--json"])
    out, err = capfd.readouterr()
    return int(done.value.code or 0), [json.loads(line) for line in out.splitlines()], err


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("csv", [False, True], ids=["jsonl", "csv"])
def test_what_comes_before_the_damage_is_judged(
    pack: Callable[[bytes], bytes], csv: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = pack(lines(csv))
    path = tmp_path / ("r.csv" if csv else "r.jsonl")
    path.write_bytes(whole[: int(0.6 * len(whole))])
    code, out, err = call(capfd, str(path))
    assert code == 3
    assert "damaged or cut off" in err
    assert "bytes could be read, what follows is lost" in err
    assert out[-1]["kind"] == "summary"
    least = 1 if pack is zstd.compress else N // 2  # Zstandard gives whole blocks
    assert least <= out[-1]["events"] < N
    assert any(line["kind"] == "verdict" for line in out)


def test_a_flipped_byte_is_damage_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = bytearray(gzip.compress(lines(False)))
    whole[-6] ^= 0xFF  # of the checksum
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(whole)
    code, out, err = call(capfd, str(path))
    assert code == 3
    assert "CRC" in err
    assert out[-1]["events"] == N


def test_nothing_is_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(lines(False))[:12])
    code, out, err = call(capfd, str(path))
    assert (code, out) == (3, [])
    assert "damaged or cut off" in err


def test_the_last_line_is_refused_if_it_is_half_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl.gz"
    whole = gzip.compress(lines(False))
    path.write_bytes(whole[: len(whole) // 2])
    code, out, _ = call(capfd, str(path))
    assert code == 3
    assert [line["reason"] for line in out if line["kind"] == "rejected"] == ["bad_json"]
