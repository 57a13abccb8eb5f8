"""Who may decide: records of a replaced owner are void, and the rest adds up to the state."""

from __future__ import annotations

import msgspec
import pytest

from schemas.errors import SchemaError
from schemas.results import Decision, encode_line
from schemas.scopes import scope_of
from streams.worker.decision_log import EpochRecord, LogReader, encode_epoch, fold


def epoch() -> bytes:
    return encode_epoch(EpochRecord(generation=1, writer="w"))


def decision(epoch: int, seq: int, subject: str = "n1", state: str = "OPEN", pool: str = "a", capped: bool = False) -> bytes:
    return encode_line(
        Decision(t=float(seq), pool=pool, scope=scope_of(subject), subject=subject, state=state,  # type: ignore[arg-type]
                 version=(1, epoch, seq), tx=f"{pool}/{subject}/{seq}", capped=capped)
    )  # fmt: skip


def test_decision_of_a_replaced_owner_is_void_and_nothing_else_is() -> None:
    log = [
        epoch(),  # offset 0 = epoch 0
        decision(0, 1),
        epoch(),  # epoch 2: a new owner
        decision(0, 2, "n2"),  # the former owner woke up
        decision(2, 1, "n3"),
        decision(0, 3, "n1", "CLOSED"),  # again
        decision(2, 2, "n1", "HALF_OPEN"),
    ]
    state = fold(enumerate(log))
    assert state.epoch == 2
    assert {s: d.state for (_, s), d in state.live["a"].items()} == {"n1": "HALF_OPEN", "n3": "OPEN"}
    assert state.version == {"a": (1, 2, 2)}
    assert set(state.known) == {"a/n1/1", "a/n3/1", "a/n1/2"}


def test_fold_goes_on_from_a_state_as_if_it_had_read_everything() -> None:
    log = [epoch(), decision(0, 1), decision(0, 2, "n2"), epoch(), decision(0, 3, "n9"), decision(3, 4, "n1", "CLOSED")]
    whole = fold(enumerate(log))
    for cut in range(len(log)):
        parts = fold(list(enumerate(log))[cut:], fold(list(enumerate(log))[:cut]))
        assert parts == whole


def test_closed_and_capped_subjects_are_not_live_and_pools_are_apart() -> None:
    log = [decision(-1, 1), decision(-1, 2, "n1", "CLOSED"), decision(-1, 3, "n2", capped=True), decision(-1, 1, pool="b")]
    state = fold(enumerate(log))
    assert state.live["a"] == {}
    assert state.version == {"a": (1, -1, 3), "b": (1, -1, 1)}
    assert list(state.live["b"]) == [("node", "n1")]


@pytest.mark.parametrize("subject", ["n1", "session:1", "request:tenant:a", "pool:"])
def test_a_subject_of_any_scope_is_live_until_it_closes(subject: str) -> None:
    state = fold(enumerate([decision(-1, 1, subject), decision(-1, 2, "n2"), decision(-1, 3, subject, "HALF_OPEN")]))
    assert state.live["a"][scope_of(subject), subject].state == "HALF_OPEN"
    assert list(fold([(3, decision(-1, 4, subject, "CLOSED"))], state).live["a"]) == [("node", "n2")]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"kind":"finding"}', b'{"kind":"decision"}', None])
def test_what_is_no_decision_is_counted_not_raised(raw: bytes | None) -> None:
    with pytest.raises(SchemaError, match="bad_decision"):
        LogReader().read(0, raw)
    state = fold([(0, raw), (1, decision(-1, 1))])
    assert (state.unreadable, len(state.known)) == (1, 1)


def test_epoch_record_is_plain_json() -> None:
    assert msgspec.json.decode(epoch()) == {"kind": "epoch", "generation": 1, "writer": "w"}
