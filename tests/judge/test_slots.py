"""Open ticks: early folding changes nothing, probes are counted by the budget, state survives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.policy import PoolPolicy, Slo
from streams.judge import pool_judge
from streams.judge.pool_judge import PoolJudge
from streams.judge.rows import Rows, adapter_keys
from streams.judge.slots import ERRORS, FAILURES, TOTAL, Slots

TICK = 5 * 10**9
POLICY = PoolPolicy(slo={"ttft_s": Slo(threshold=1.0)})


def rows(n: int, seed: int = 0, nodes: int = 3, ticks: int = 2) -> Rows:
    rng = np.random.default_rng(seed)
    u32 = np.zeros(n, np.uint32)
    return Rows(
        node=rng.integers(0, nodes, n).astype(np.uint32),
        ts_ns=rng.integers(0, ticks * TICK, n),
        outcome=rng.choice(np.array([0, 0, 0, 1, 3, 4, 7], np.uint8), n),
        prompt_tokens=u32,
        cached_tokens=u32,
        output_tokens=u32,
        adapter_key=u32,
        adapter_no=np.zeros(n, np.uint16),
        tenant_no=np.zeros(n, np.uint16),
        session=np.zeros(n, np.uint16),
        probe=np.full(n, -1, np.int8),
        kv_mismatch=np.zeros(n, np.bool_),
        latency_s=rng.lognormal(-0.5, 0.5, (4, n)).astype(np.float32),
    )


def seats(n: int) -> Any:
    return np.arange(n)


def test_counts_are_those_of_a_plain_loop() -> None:
    slots = Slots(POLICY, lambda slot, r: None)
    r = rows(500)
    slots.add(r)
    slot = slots.close(0, seats(3), np.zeros(3, np.bool_))
    mine = r.ts_ns < TICK
    for node in range(3):
        at = mine & (r.node == node)
        against = at & np.isin(r.outcome, [4, 5, 6, 7])
        missed = at & (r.outcome == 0) & (r.latency_s[0] > 1.0)
        assert slot.counts[ERRORS, node] == against.sum()
        assert slot.counts[FAILURES, node] == (against | missed).sum()
        assert slot.counts[TOTAL, node] == (at & (r.outcome == 0)).sum() + against.sum()
    assert slot.slo_bad.tolist() == [slot.counts[FAILURES].sum()]
    assert slot.slo_total.tolist() == [slot.counts[TOTAL].sum()]


def test_early_folding_changes_nothing() -> None:
    seen: list[list[int]] = [[], []]
    results = []
    for early in (False, True):
        slots = Slots(POLICY, lambda slot, r, k=int(early): seen[k].extend([slot] * len(r)))
        for k in range(10):
            slots.add(rows(100, seed=k))
            if early:
                slots.fold(0, seats(3), np.zeros(3, np.bool_))
                assert slots.n_waiting == 0
        results.append([slots.close(i, seats(3), np.zeros(3, np.bool_)) for i in range(2)])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one.counts, two.counts)
        np.testing.assert_array_equal(one.asked_ns, two.asked_ns)
        np.testing.assert_array_equal(one.served_ns, two.served_ns)
    assert sorted(seen[0]) == sorted(seen[1])


def test_nodes_without_a_seat_wait_through_a_fold() -> None:
    slots = Slots(POLICY, lambda slot, r: None)
    slots.add(rows(200, ticks=1))
    slots.fold(0, np.array([0, -1, -1]), np.zeros(1, np.bool_))
    waiting = slots.n_waiting
    assert 0 < waiting < 200
    assert set(slots.numbers_in(0)) == {1, 2}
    slot = slots.close(0, np.array([0, 2, 1]), np.zeros(3, np.bool_))
    plain = Slots(POLICY, lambda slot, r: None)
    plain.add(rows(200, ticks=1))
    expected = plain.close(0, np.array([0, 2, 1]), np.zeros(3, np.bool_))
    np.testing.assert_array_equal(slot.counts, expected.counts)


def test_the_first_answers_of_each_second_are_the_probes_and_bad_ones_come_first_among_equals() -> None:
    slots = Slots(POLICY, lambda slot, r: None)
    r = rows(6, ticks=1)
    r.node[:] = 0
    r.ts_ns[:] = [0, 0, 5 * 10**8, 9 * 10**8, 10**9, 10**9]
    r.outcome[:] = [0, 4, 0, 4, 0, 0]
    r.latency_s[:] = 0.1
    slots.add(r.take(np.array([3, 0, 5, 1, 4, 2])))
    slot = slots.close(0, seats(1), np.ones(1, np.bool_))
    assert slot.probes(0, 1, marked=False) == (1, 1, {1: 4})
    assert slot.probes(0, 3, marked=False) == (4, 1, {1: 4})
    assert slot.probes(0, 9, marked=False) == (4, 2, {1: 4})
    assert slot.probes(0, 9, marked=True) == (0, 0, {})


def test_folding_early_in_a_judge_changes_nothing(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [kit.Fault("slow", [1], 300.0, strength=6.0)]
    traffic = kit.traffic(seconds=500.0, faults=faults)
    expected = kit.feed(PoolJudge(kit.POOL, kit.policy(), policy_version="v1"), traffic)
    monkeypatch.setattr(pool_judge, "MAX_WAITING_ROWS", 30)
    heard = kit.feed(PoolJudge(kit.POOL, kit.policy(), policy_version="v1"), traffic)
    assert expected.decisions
    assert heard.decisions == expected.decisions
    assert heard.verdicts == expected.verdicts


def test_adapter_keys_do_not_depend_on_the_dictionary(kit: Any) -> None:
    batch = kit.traffic(seconds=5.0).batch
    batch.adapters, batch.adapter = ["a", "b"], (np.arange(len(batch)) % 2).astype(np.uint32)
    one = adapter_keys(batch, {})
    batch.adapters, batch.adapter = ["b", "a"], ((np.arange(len(batch)) + 1) % 2).astype(np.uint32)
    np.testing.assert_array_equal(one, adapter_keys(batch, {}))
    assert (one != 0).all()
