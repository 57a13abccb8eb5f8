"""The newest complete snapshot is found, whatever lies around it in the topic."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.results import Decision
from streams.worker.snapshot import Snapshot, choose, decode, pack, to_records


@dataclass
class Message:
    k: bytes
    v: bytes | None
    h: list[tuple[str, bytes]]

    def key(self) -> bytes:
        return self.k

    def value(self) -> bytes | None:
        return self.v

    def headers(self) -> list[tuple[str, bytes]]:
        return self.h


def state(epoch: int, next_offset: int, size: int = 50) -> Snapshot:
    return Snapshot(epoch=epoch, next_offset=next_offset, log_offset=3, pools={"a": os.urandom(size)})


def messages(snapshot: Snapshot, slot: int, part_bytes: int = 10_000) -> list[Message]:
    return [Message(*record) for record in to_records(4, snapshot, pack(snapshot), slot, part_bytes)]


def chosen(records: list[Any]) -> tuple[int, int, int] | None:
    found = choose(4, records)
    if found is None:
        return None
    snapshot = decode(found[0])
    return snapshot.epoch, snapshot.next_offset, found[1]


def test_everything_survives_the_round_trip() -> None:
    decision = Decision(t=1.0, pool="a", scope="node", subject="n", state="OPEN", version=(1, 2, 3), tx="x", not_after=2.5)
    snapshot = Snapshot(
        epoch=2, next_offset=10, log_offset=5, generation=3, duplicates=b"d", pools={"a": b"1"}, live=[decision],
        version={"a": (1, 2, 3)}, heard={"a": (5, 6)},
    )  # fmt: skip
    assert decode(pack(snapshot)) == snapshot


@pytest.mark.parametrize("sizes", [[], [0], [5, 3_500_000], [1 << 20, (1 << 20) + 1]])
def test_packed_in_pieces_is_the_same_message(sizes: list[int]) -> None:
    snapshot = state(2, 30)
    snapshot.pools = {f"pool-{i}": os.urandom(size) for i, size in enumerate(sizes)}
    assert decode(pack(snapshot)) == snapshot


def test_small_snapshot_is_one_record_that_replaces_the_one_before() -> None:
    (first,), (second,) = messages(state(1, 10), 0), messages(state(1, 20), 1)
    assert first.key() == second.key() == b"4"
    assert chosen([first, second]) == (1, 20, 1)


def test_large_snapshot_is_valid_only_when_all_its_parts_are_there() -> None:
    old, new = messages(state(1, 10, 35_000), 0), messages(state(1, 20, 35_000), 1)
    assert len(new) == 4
    assert [m.key() for m in new] == [b"4/1/1", b"4/1/2", b"4/1/3", b"4"]
    for n in range(len(new)):
        assert chosen(old + new[:n]) == (1, 10, 0), "half a snapshot changes nothing"
    assert chosen(old + new) == (1, 20, 1)
    assert chosen(old + new[1:]) == (1, 10, 0)
    assert chosen([*old[:-1], *new[:-1]]) is None


def test_parts_of_the_other_slot_survive_compaction_of_the_next_attempt() -> None:
    old, torn = messages(state(1, 10, 35_000), 0), messages(state(1, 20, 35_000), 1)[:-1]
    newest = {m.key(): m for m in old + torn}
    assert chosen(list(newest.values())) == (1, 10, 0)


def test_late_snapshot_of_a_former_owner_is_passed_over() -> None:
    assert chosen(messages(state(9, 500), 0) + messages(state(5, 900), 1)) == (9, 500, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6))
def test_highest_epoch_then_highest_offset_wins(written: list[tuple[int, int]]) -> None:
    records = [m for epoch, offset in written for m in messages(state(epoch, offset), 0)]
    best = chosen(records)
    assert (None if best is None else best[:2]) == (max(written) if written else None)


@pytest.mark.parametrize(
    "rubbish",
    [
        Message(b"4", b"x", []),
        Message(b"4", b"x", [("slodrift.snapshot", b"{")]),
        Message(b"4", None, [("slodrift.snapshot", b"{}")]),
        Message(b"5", b"x", [("other", b"")]),
    ],
)
def test_rubbish_in_the_topic_is_passed_over(rubbish: Message) -> None:
    assert chosen([rubbish]) is None
    assert chosen([*messages(state(1, 10), 0), rubbish]) == (1, 10, 0)
