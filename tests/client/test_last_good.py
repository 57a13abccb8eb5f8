from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slodrift_client.lastgood import LastGood

HEAD, SNAPSHOT = b'{"head":1}', b'{"snapshot":"\n"}'


class Wall:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def files(tmp_path: Path, wall: Wall) -> LastGood:
    return LastGood(tmp_path / "state", wall)


def test_comes_back_with_its_age(files: LastGood, wall: Wall) -> None:
    assert files.load("f", "p") is None
    files.save("f", "p", HEAD, SNAPSHOT)
    wall.now += 7
    saved = files.load("f", "p")
    assert saved is not None
    assert (saved.raw_head, saved.raw_snapshot, saved.age_s) == (HEAD, SNAPSHOT, 7.0)
    assert files.load("f", "q") is None
    assert files.load("g", "p") is None


@pytest.mark.parametrize("shift_s", [601, 1e9, -1])
def test_too_old_or_from_the_future_is_not_believed(files: LastGood, wall: Wall, shift_s: float) -> None:
    files.save("f", "p", HEAD, SNAPSHOT)
    wall.now += shift_s
    assert files.load("f", "p") is None


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_and_leaves_nothing_else(
    files: LastGood, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("f", "p", HEAD, SNAPSHOT)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space"):
        files.save("f", "p", b"new", b"new")
    monkeypatch.undo()
    saved = files.load("f", "p")
    assert saved is not None
    assert saved.raw_head == HEAD
    assert len(list(files.path("f", "p").parent.iterdir())) == 1


def test_folder_is_for_this_user_alone(files: LastGood) -> None:
    files.save("f", "p", HEAD, SNAPSHOT)
    assert files.path("f", "p").parent.stat().st_mode & 0o077 == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.just(b'{"saved_s":NaN,"head":1,"snapshot":0}\nx') | st.just(b"x" * 2_000_000))
def test_damaged_file_is_an_error_or_nothing(files: LastGood, raw: bytes) -> None:
    path = files.path("f", "p")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    try:
        said = str(files.load("f", "p"))
    except ValueError as exc:
        said = str(exc)
    assert said == "None" or str(path) in said


def test_file_that_was_cut_off_is_an_error(files: LastGood) -> None:
    files.save("f", "p", HEAD, SNAPSHOT)
    path = files.path("f", "p")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut off"):
        files.load("f", "p")
