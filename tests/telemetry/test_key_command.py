"""Keys of writers: made from the master, written to a file that only its owner reads, never printed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from schemas.telemetry_auth import Authenticator, Writer
from streams.cli import main

MASTER = bytes(range(32))


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["key", *args])
    return int(left.value.code or 0)


def test_a_node_gets_a_key_that_the_pipeline_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLODRIFT_TELEMETRY_KEYS", MASTER.hex())
    out = tmp_path / "n1.key"
    assert run("node/n1", "--out", str(out)) == 0
    key = bytes.fromhex(out.read_text())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    sealed = Writer("node/n1", key).seal_event(b'{"kind":"node","ts":1,"pool":"p","node":"n1"}')
    assert Authenticator([MASTER]).event_fault(sealed) is None
    said = "".join(capsys.readouterr())
    assert key.hex() not in said
    assert MASTER.hex() not in said
    assert run("node/n1", "--out", str(out)) == 2, "it is not overwritten"
    assert bytes.fromhex(out.read_text()) == key


@pytest.mark.parametrize(("writer", "keys"), [("n1", MASTER.hex()), ("root/n1", MASTER.hex()), ("node/n1", "")])
def test_what_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, keys: str) -> None:
    if keys:
        monkeypatch.setenv("SLODRIFT_TELEMETRY_KEYS", keys)
    assert run(writer, "--out", str(tmp_path / "k")) == 2
    assert not (tmp_path / "k").exists()
