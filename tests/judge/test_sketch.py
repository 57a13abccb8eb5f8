"""Rows with weights: the judge counts requests. Condensed, a story has the same windows and the same decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.batch import RequestBatch
from schemas.results import encode_line
from schemas.scopes import SESSION_BUCKETS
from schemas.sketch import condense
from streams.judge import PoolJudge
from streams.judge.rows import Rows, adapter_keys
from streams.judge.scopes.covered import Covered
from streams.judge.scopes.names import Names
from streams.judge.scopes.window import ALL, MAX_COUNT, ClassWindow, SessionWindow
from streams.judge.slots import Slot, Slots

TICK_S = 5.0
EXACT = ("n", "n_tick", "status", "baseline", "p999_s", "p999_lo_s", "p999_hi_s", "p999_kind")
"""Columns of windows that condensing leaves as they are."""


def lines(outputs: list[Any]) -> list[bytes]:
    return [encode_line(r) for o in outputs for r in (*o.verdicts, *o.findings, *o.decisions)]


def windows(outputs: list[Any], names: tuple[str, ...] | None = None) -> dict[float, dict[str, Any]]:
    """Columns by time and name."""
    found = {}
    for output in outputs:
        if output.windows is not None:
            columns = output.windows.columns()
            found[output.t] = {name: columns[name] for name in (names or columns)} | {"node": columns["node"]}
    return found


def assert_same_windows(one: list[Any], two: list[Any], names: tuple[str, ...] | None = None) -> None:
    before, after = windows(one, names), windows(two, names)
    assert list(before) == list(after)
    assert before
    for t, columns in before.items():
        for name, values in columns.items():
            np.testing.assert_array_equal(after[t][name], values, err_msg=f"{name} at {t}")


def with_scopes(batch: RequestBatch, seed: int) -> RequestBatch:
    """The batch with adapters, tenants, sessions and tokens from the prefix cache."""
    rng, n = np.random.default_rng(seed), len(batch)
    return replace(
        batch, adapters=list("abcdefgh"), adapter=rng.integers(0, 8, n).astype(np.uint32), tenants=["t"],
        tenant=rng.choice(np.array([0, 2**32 - 1], np.uint32), n), session=rng.integers(0, 4000, n).astype(np.uint32),
        cached_tokens=(batch.prompt_tokens * rng.random(n)).astype(np.uint32),
    )  # fmt: skip


def new(kit: Any, **settings: Any) -> PoolJudge:
    return PoolJudge(kit.POOL, kit.policy(**settings), policy_version="v1")


# -- weights against rows repeated ----


@pytest.mark.parametrize("marked", [False, True])
def test_a_row_of_weight_w_is_w_rows(kit: Any, marked: bool) -> None:
    """Every result, byte by byte: a slow node, errors of one adapter, foreign slots, empty answers, probes, a snapshot."""
    faults = [
        kit.Fault("slow", [1], 300.0, 380.0, strength=6.0), kit.Fault("server_error", [3], 430.0, 500.0, share=0.4),
        kit.Fault("foreign_kv", [2], 400.0, 410.0, share=0.5), kit.Fault("empty_ok", [0], 520.0, 560.0, share=0.7),
    ]  # fmt: skip
    made = kit.traffic(nodes=6, rate=3.0, seconds=700.0, seed=4, faults=faults, marked=marked)
    rng = np.random.default_rng(8)
    batch = with_scopes(made.batch, 8)
    if marked:
        batch.probe[rng.random(len(batch)) < 0.2] = 3
    wrong = (batch.adapter == 0) & (batch.ts_ns > (kit.T0 + 600) * 10**9) & (rng.random(len(batch)) < 0.9)
    batch = replace(batch, outcome=np.where(wrong, np.uint8(4), batch.outcome))
    weight = rng.integers(1, 6, len(batch)).astype(np.uint32)
    each = np.repeat(np.arange(len(batch)), weight)
    extra = [{"river": "drift.PageHinkley", "on": "p99_log"}, {"river": "drift.ADWIN", "on": "n"}]
    # Which of the requests that a row stands for came first is not known: without marks, only probes differ.
    settings = {"detection": {"extra": extra}, "breaker": {"open_s": 30.0 if marked else 500.0}}
    heard = kit.feed(new(kit, **settings), replace(made, batch=batch.take(each)))
    assert {d.state for d in heard.decisions} >= ({"OPEN", "HALF_OPEN"} if marked else {"OPEN"})
    assert any(f.evidence.get("subject") == "request:adapter:a" for f in heard.findings)

    sketch = replace(made, batch=replace(batch, weight=weight))
    judged = kit.feed(new(kit, **settings), sketch).outputs
    assert lines(judged) == lines(heard.outputs)
    assert_same_windows(heard.outputs, judged)

    edge = (kit.T0 + (335.0 if marked else 452.0)) * 1e9
    early = sketch.batch.ts_ns < edge
    judge = new(kit, **settings)
    first = kit.Traffic(sketch.batch.take(early), [e for e in made.events if e.ts * 1e9 < edge])
    before = kit.feed(judge, first, finish=False)
    raw = judge.snapshot()
    again = PoolJudge.restore(raw, kit.policy(**settings), policy_version="v1")
    assert again.snapshot() == raw
    rest = kit.Traffic(sketch.batch.take(~early), [e for e in made.events if e.ts * 1e9 >= edge])
    assert lines(before.outputs) + lines(kit.feed(again, rest).outputs) == lines(heard.outputs)


def test_refused_requests_are_counted_not_rows(kit: Any) -> None:
    batch = kit.traffic(seconds=300.0, state_events=False).batch
    weight = np.full(len(batch), 7, np.uint32)
    judge = new(kit, inventory=["gpu-00", "gpu-01", "gpu-02"])
    judge.requests(replace(batch, weight=weight))
    judge.advance()
    assert judge.rejected["unknown_node"] == 7 * int((batch.node == 3).sum())
    known = batch.take(batch.node < 3)
    judge.requests(replace(known, weight=weight[: len(known)]).take(slice(0, 5)))
    wild = replace(known.take(slice(0, 2)), weight=np.array([100, 50], np.uint32))
    wild.ts_ns = wild.ts_ns + 86_400 * 10**9
    judge.requests(wild)
    judge.advance()
    judge.finish()
    assert judge.late == 35
    assert judge.rejected["future"] == 150


def test_windows_of_classes_and_sessions_hold_any_number() -> None:
    window = ClassWindow(2)
    window.grow(1)
    counts = np.zeros((3, ALL + 1, 1), np.int64)
    counts[0] = MAX_COUNT
    for _ in range(3):
        window.add(counts)
    assert window.sums[0, ALL, 0] == 2 * MAX_COUNT
    sessions = SessionWindow(2)
    bucket, node = np.array([5, 5, 6]), np.array([0, 0, 1])
    asked = np.bincount(bucket, weights=[2**24, 2**24, 9], minlength=SESSION_BUCKETS).astype(np.int64)
    for _ in range(3):
        sessions.add(asked, bucket, node, np.array([2**24, 2**24, 9], np.uint32))
    assert [part.tolist() for part in sessions.errors()] == [[5, 6], [0, 1], [2**26, 18]]


def test_seats_go_to_those_with_most_requests() -> None:
    names = Names(1)
    numbers = names.of_rows(["few", "many"], np.array([0, 0, 0, 1], np.uint32))
    names.take_seats(0.0, numbers, lambda name: True, np.array([1, 1, 1, 9], np.uint32))
    assert names.seats == ["many"]


def test_probes_without_marks_are_bad_by_their_share() -> None:
    columns = [
        np.array([1, 2, 3, 10**9, 10**9 + 1], np.int64), np.zeros(5, np.uint32), np.array([1, 0, 0, 0, 1], np.uint8),
        np.zeros(5, np.int8), np.array([100, 800, 100, 2, 1], np.uint32),
    ]  # fmt: skip
    slot = Slot(0, raw=[tuple(columns)])
    assert slot.probes(0, 50, marked=False) == (47, 6, {1: 902})  # 5 of 50, 1 of 3
    assert slot.probes(0, 10**6, marked=False) == (902, 101, {1: 902})
    assert slot.probes(1, 50, marked=False) == (0, 0, {})
    columns[3][:] = [2, 2, 0, 3, 3]
    assert slot.probes(0, 1, marked=True) == (802, 101, {2: 800, 3: 2})


# -- snapshots ----


def test_a_snapshot_of_a_version_without_weights_is_read(kit: Any) -> None:
    made = kit.traffic(seconds=30.0, state_events=False)
    slots = Slots(kit.policy(), lambda slot, rows: None)
    slots.add(rows_of(made.batch, Names(1), Names(1)))
    watched, seats = np.array([True, False, True, True]), np.arange(4)
    slots.fold(kit.T0 // 5, seats, watched)
    old = slots.dump()
    for entry in old["open"]:
        assert entry["raw"] or entry["waiting"]
        entry["raw"] = [columns[:4] for columns in entry["raw"]]
        assert "weight" not in entry["covered"]
        assert all("weight" not in rows for rows in entry["waiting"])
    again = Slots(kit.policy(), lambda slot, rows: None)
    again.load(old, with_slos=True)
    assert again.dump() == slots.dump()
    number = min(again.open)
    one, two = (each.close(number, seats, watched) for each in (slots, again))
    assert one.probes(0, 3, marked=False) == two.probes(0, 3, marked=False)


# -- condensed against raw ----


def rows_of(batch: RequestBatch, adapters: Names, tenants: Names) -> Rows:
    return Rows.of_batch(
        batch, batch.node, adapter_keys(batch, {}), adapters.of_rows(batch.adapters, batch.adapter),
        tenants.of_rows(batch.tenants, batch.tenant),
    )  # fmt: skip


def condensed(batch: RequestBatch, **options: Any) -> RequestBatch:
    """What the agents of all nodes would send, in the order of time."""
    parts = []
    for node in np.unique(batch.node):
        rows = condense(batch.take(batch.node == node), **options)
        parts.append(replace(rows, nodes=batch.nodes, node=np.full(len(rows), node, np.uint32)))
    columns = ("node", "ts_ns", "outcome", "prompt_tokens", "output_tokens", "cached_tokens", "batch_size", "probe", "adapter",
               "tenant", "session", "kv_mismatch", "weight")  # fmt: skip
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
    whole = replace(batch, latency_s=np.concatenate([part.latency_s for part in parts], axis=1), **joined)
    return whole.take(np.argsort(whole.ts_ns, kind="stable"))


def busy(kit: Any, seconds: float, faults: list[Any]) -> Any:
    """Three nodes with so many requests that a second of them has many alike."""
    made = kit.traffic(nodes=3, rate=800.0, seconds=seconds, seed=6, faults=faults)
    batch, n, rng = made.batch, len(made.batch), np.random.default_rng(7)
    tpot = batch.latency_s[1]  # with its noise, and slower at the node with the fault
    ttft, queue = 20 * tpot * np.exp(rng.normal(0.0, 0.2, n)), 0.2 * tpot
    latency = np.stack([ttft, tpot, queue, ttft + 100 * tpot]).astype(np.float32)
    tokens = {"prompt_tokens": np.full(n, np.uint32(300)), "output_tokens": np.full(n, np.uint32(100))}
    made.batch = replace(batch, latency_s=latency, **tokens)
    return made


def covered_table(slot: Slot) -> dict[tuple[int, ...], int]:
    rows, found = Covered.concat(slot.covered), {}
    for i in range(len(rows)):
        names = ("node", "adapter", "tenant", "session", "prompt", "ok", "error", "failed")
        key = tuple(int(getattr(rows, name)[i]) for name in names)
        found[key] = found.get(key, 0) + (1 if rows.weight is None else int(rows.weight[i]))
    return found


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_tick_of_condensed_rows_is_the_tick(kit: Any, seed: int, sessions: bool) -> None:
    faults = [kit.Fault(kind, [node], 0.0, share=0.3) for node, kind in enumerate(("server_error", "foreign_kv", "empty_ok"))]
    batch = with_scopes(kit.traffic(nodes=3, rate=40.0, seconds=9.0, seed=seed, faults=faults, state_events=False).batch, seed)
    if not sessions:
        batch.session[:] = 0
    policy, adapters, tenants = kit.policy(0.2), Names(2), Names(2)
    cuts = {name: [slo.threshold] for name, slo in policy.slo.items()}
    few = condensed(batch, cuts=cuts, sessions=sessions)
    assert few.requests == len(batch)
    found = []
    for each in (batch, few):
        slots = Slots(policy, lambda slot, rows: None)
        slots.add(rows_of(each, adapters, tenants))
        found.append([slots.close(kit.T0 // 5 + i, np.arange(3), np.zeros(3, np.bool_)) for i in range(2)])
    for one, two in zip(*found, strict=True):
        for name in ("counts", "asked_ns", "served_ns", "slo_total", "slo_bad"):
            np.testing.assert_array_equal(getattr(two, name), getattr(one, name), err_msg=name)
        assert one.slo_bad.any()
        assert covered_table(two) == covered_table(one)


STORIES: dict[str, tuple[Any, ...]] = {
    "a slow node": ("slow", [1], 350.0, 410.0, 5.0, 1.0),
    "a burst of errors": ("server_error", [2], 350.0, 410.0, 1.0, 0.4),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_told_in_sketches_has_the_same_windows_and_decisions(kit: Any, name: str) -> None:
    fault = kit.Fault(*STORIES[name])
    made = busy(kit, 530.0, [fault])
    cuts = {sli: [slo.threshold] for sli, slo in kit.policy().slo.items()}
    few = condensed(made.batch, cuts=cuts)
    assert few.requests == len(made.batch) > 4 * len(few)
    raw = kit.feed(new(kit), made)
    sketch = kit.feed(new(kit), replace(made, batch=few))
    assert raw.opened() == sketch.opened()
    assert raw.opened()[0] == kit.name(fault.nodes[0])
    told = [(d.state, d.subject, d.scope, d.admit_ratio) for d in raw.decisions]
    assert [(d.state, d.subject, d.scope, d.admit_ratio) for d in sketch.decisions] == told
    assert told[-1][0] == "CLOSED"
    for one, two in zip(raw.decisions, sketch.decisions, strict=True):
        assert abs(one.t - two.t) <= TICK_S, one
    calm = [[o for o in each.outputs if o.t <= kit.T0 + fault.start] for each in (raw, sketch)]
    assert_same_windows(*calm, EXACT)
    assert_same_windows(raw.outputs, sketch.outputs, ("n_tick",))


def test_alone_the_sketches_are_no_news(kit: Any) -> None:
    made = busy(kit, 400.0, [])
    few = condensed(made.batch, slice_s=TICK_S)
    assert len(made.batch) > 10 * len(few)
    heard = kit.feed(new(kit), replace(made, batch=few))
    assert heard.decisions == []
    assert not {"node_degradation", "fleet_shift"} & heard.words()
