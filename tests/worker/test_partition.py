"""What one batch of frames does to a partition's state: a function of the log, whatever the batches and restarts were."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.errors import SchemaError
from schemas.telemetry_auth import Authenticator
from streams.worker.partition import JudgePartition
from streams.worker.snapshot import decode, pack

Frame = Callable[..., bytes]


@pytest.fixture
def part(factory: Any) -> JudgePartition:
    return JudgePartition("telemetry.frames", 2, factory, epoch=7, generation=1)


def fingerprint(part: JudgePartition) -> list[Any]:
    return [(p, j.rows, j.seq, j.sum_ns, j.events, j.clock_ns, sorted(j.open.items())) for p, j in sorted(part.pools.items())]


def log_of(make_frame: Frame, make_event_frame: Frame, make_record: Any, n: int = 40) -> list[Any]:
    rng = np.random.default_rng(3)
    records, source = [], itertools.count(0, 7)
    for offset in range(n):
        pool, node = str(rng.choice(["a", "b"])), str(rng.choice(["n1", "n2", "n3"]))
        if offset % 9 == 4:
            value = make_event_frame(pool, node, 1000.0 + offset)
        elif offset % 13 == 6:
            value = b"rubbish"
        else:
            first = next(source) - (7 if offset % 5 == 3 else 0)
            value = make_frame(pool, node, n=7, t0_s=1000.0 + offset, first=first)
        records.append(make_record(offset, value, 1_700_000_000_000 + offset * 1000))
    return records


@pytest.mark.parametrize("size", [1, 3, 64])
def test_state_and_decisions_do_not_depend_on_how_the_log_was_cut(
    factory: Any, make_frame: Frame, make_event_frame: Frame, make_record: Any, size: int
) -> None:
    records = log_of(make_frame, make_event_frame, make_record)
    whole = JudgePartition("t", 0, factory, epoch=7, generation=1)
    expected = whole.step(records)
    cut = JudgePartition("t", 0, factory, epoch=7, generation=1)
    steps = [cut.step(records[i : i + size]) for i in range(0, len(records), size)]
    assert fingerprint(cut) == fingerprint(whole)
    for pool in ("a", "b"):
        got = [d.tx for s in steps for o in s.outputs if o.pool == pool for d in o.decisions]
        assert got == [d.tx for o in expected.outputs if o.pool == pool for d in o.decisions]
    assert [x.offset for s in steps for x in s.dead] == [x.offset for x in expected.dead] == [6, 19, 32]
    assert cut.next_offset == len(records)
    assert cut.duplicates.duplicates == whole.duplicates.duplicates > 0


@pytest.mark.parametrize("at", [1, 10, 33])
def test_snapshot_and_the_rest_of_the_log_give_the_same_state(
    factory: Any, make_frame: Frame, make_event_frame: Frame, make_record: Any, at: int
) -> None:
    records = log_of(make_frame, make_event_frame, make_record)
    whole = JudgePartition("t", 0, factory, epoch=7, generation=1)
    whole.step(records)
    first = JudgePartition("t", 0, factory, epoch=7, generation=1)
    first.step(records[:at])
    second = JudgePartition("t", 0, factory, epoch=9, generation=1)
    second.restore(decode(pack(first.snapshot(log_offset=5))))
    assert second.next_offset == at
    second.step(records[at:])
    assert fingerprint(second) == fingerprint(whole)
    assert second.heard == whole.heard
    assert {j.epoch for j in second.pools.values()} == {9}


def test_bad_frames_become_dead_letters_with_their_bytes_and_reason(
    part: JudgePartition, make_frame: Frame, make_record: Any
) -> None:
    good, cut, other = make_frame(), make_frame()[:-3], make_frame().replace(b"\xa1v\x01", b"\xa1v\x63")
    step = part.step([make_record(10, good), make_record(11, cut), make_record(12, other), make_record(13, None)])
    assert [(x.offset, x.reason, x.stage, x.raw) for x in step.dead] == [
        (11, "bad_frame", "decode", cut),
        (12, "frame_version", "decode", other),
        (13, "bad_frame", "decode", b""),
    ]
    assert all((x.topic, x.partition) == ("telemetry.frames", 2) and x.detail for x in step.dead)
    assert (step.frames, step.rows, part.next_offset) == (1, 5, 14)


def test_unbelievable_rows_are_dead_lettered_and_the_others_are_used(
    part: JudgePartition, make_frame: Frame, make_record: Any
) -> None:
    raw = make_frame(n=4, latency_s=-1.0)
    step = part.step([make_record(0, raw), make_record(1, make_frame(n=2))])
    (letter,) = step.dead
    assert (letter.stage, letter.reason, letter.count, letter.raw) == ("rows", "negative_latency", 4, raw)
    assert step.rows == 2


def sketch(raw: bytes, weight: list[int], seq: int, **change: Any) -> bytes:
    """The frame with weights, as an agent would send it."""
    wire = msgspec.msgpack.decode(raw)
    wire["cols"]["weight"] = np.array(weight, "<u4").tobytes()
    return msgspec.msgpack.encode(wire | {"kind": "sketch", "boot_id": "b", "seq": seq} | change)


def test_a_sketch_frame_counts_requests_and_only_once(part: JudgePartition, make_frame: Frame, make_record: Any) -> None:
    raw = sketch(make_frame(n=3), [5, 1, 1000], 1)
    step = part.step([make_record(0, raw), make_record(1, raw), make_record(2, sketch(make_frame(n=1), [7], 2))])
    assert (step.frames, step.rows, step.duplicates, step.dead) == (3, 1013, 1006, [])
    assert part.pools["pool-a"].rows == 4
    bad = part.step([make_record(3, sketch(make_frame(n=2, latency_s=-1.0), [90, 10], 3))])
    assert [(x.reason, x.count, bad.rows) for x in bad.dead] == [("negative_latency", 100, 0)]


def test_sketch_frames_that_lie_become_dead_letters(part: JudgePartition, make_frame: Frame, make_record: Any) -> None:
    frame = make_frame(n=2)
    lies = [
        sketch(frame, [1, 0], 1), sketch(frame, [2**32 - 1, 1], 1), sketch(frame, [1], 1), sketch(frame, [1, 1], 1, boot_id=""),
        sketch(frame, [1, 1], 1, kind="requests"),
    ]  # fmt: skip
    step = part.step([*(make_record(i, raw) for i, raw in enumerate(lies)), make_record(9, sketch(frame, [1, 4], 1))])
    assert [(x.offset, x.stage, x.reason) for x in step.dead] == [(i, "decode", "bad_frame") for i in range(len(lies))]
    assert (step.frames, step.rows, step.duplicates) == (1, 5, 0), "a refused frame moves no mark"


def test_poison_is_skipped_and_dead_lettered(part: JudgePartition, make_frame: Frame, make_record: Any) -> None:
    records = [make_record(0, make_frame()), make_record(1, make_frame(node="poison")), make_record(2, make_frame())]
    with pytest.raises(ZeroDivisionError):
        part.step(records)
    part.poison[1] = "ZeroDivisionError: no"
    assert part.reset(None, 0) == 0
    step = part.step(records)
    assert [(x.offset, x.stage, x.reason) for x in step.dead] == [(1, "judge", "poison")]
    assert step.rows == 10


def test_what_the_log_holds_is_not_decided_again(part: JudgePartition, make_frame: Frame, make_record: Any) -> None:
    """A restart judges the ticks since the snapshot once more; one decision had been appended when it died."""
    outputs = part.step([make_record(0, make_frame("a", "n1", n=30, t0_s=1000.0))]).outputs
    first, *others = part.new_decisions(outputs)
    assert len(others) == 2
    part.log.apply(first)
    assert part.new_decisions(outputs) == others
    for decision in others:
        part.log.apply(decision)
    assert part.new_decisions(outputs) == []


def test_time_goes_on_in_a_silent_pool_from_where_it_stood(part: JudgePartition, make_frame: Frame, make_record: Any) -> None:
    part.step([make_record(0, make_frame("a", t0_s=5000.0, n=1), 1_700_000_000_000)])
    part.step([make_record(1, make_frame("b", t0_s=5000.0, n=1), 1_700_000_019_000)])
    part.idle({"a": 5020 * 10**9})
    assert part.pools["a"].clock_ns == 5020 * 10**9
    assert part.pools["b"].clock_ns == 5000 * 10**9, "not named"
    part.idle({"a": 5010 * 10**9})
    assert part.pools["a"].clock_ns == 5020 * 10**9, "never back"


def test_snapshot_of_another_version_is_refused(part: JudgePartition, factory: Any) -> None:
    snapshot = part.snapshot(0)
    snapshot.duplicates = b"\xc1"
    with pytest.raises(SchemaError, match="bad_snapshot"):
        part.restore(snapshot)
    with pytest.raises(SchemaError, match="bad_snapshot"):
        decode(b"not zstd")


def test_authenticated_frames_give_the_same_state_and_forged_ones_dead_letters(
    factory: Any, make_frame: Frame, make_event_frame: Frame, make_record: Any
) -> None:
    """A forged frame moves no clock and no mark of duplicates: the state is that of the authentic ones alone."""
    auth = Authenticator([bytes(32)])
    records = [r for r in log_of(make_frame, make_event_frame, make_record) if r.value != b"rubbish"]
    plain = JudgePartition("t", 0, factory, epoch=7, generation=1)
    expected = plain.step(records)
    sealed = [make_record(r.offset, auth.writer("framer").seal_frame(r.value), r.timestamp) for r in records]
    thief = auth.writer("node/n9")
    forged = [
        make_record(1000, make_frame("a", "n1", n=7, t0_s=9000.0, first=10_000), 1_800_000_000_000),
        make_record(1001, thief.seal_frame(make_frame("a", "n1", n=7, t0_s=9000.0, first=10_000)), 1_800_000_000_000),
        make_record(1002, sealed[0].value[:-1] + b"?", 1_800_000_000_000),
    ]
    guarded = JudgePartition("t", 0, factory, epoch=7, generation=1, auth=auth)
    step = guarded.step([*forged, *sealed])
    assert [(x.stage, x.reason, x.offset) for x in step.dead] == [
        ("authenticate", "no_mac", 1000), ("authenticate", "not_its_own", 1001), ("authenticate", "bad_mac", 1002)
    ]  # fmt: skip
    assert step.dead[0].raw == forged[0].value
    assert fingerprint(guarded) == fingerprint(plain)
    assert [d for o in step.outputs for d in o.decisions] == [d for o in expected.outputs for d in o.decisions]
