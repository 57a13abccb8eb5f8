"""A row of weight w counts as w equal rows do, in every function that takes weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import extra, histogram
from detectors.bank import SeriesBank
from detectors.residuals import class_residuals
from detectors.rows import Rows
from detectors.weights import count, joined, picked, total
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 120)
weights = st.sampled_from([2, 30, 4000])


def columns(n: int, seed: int, most: int, nodes: int = 3) -> tuple[Rows, Rows]:
    """Rows with weights, and the same rows repeated."""
    rng = np.random.default_rng(seed)
    latency = rng.lognormal(-1, 0.7, (4, n)).astype(np.float32)
    latency[rng.random((4, n)) < 0.15] = np.nan
    latency[:, rng.random(n) < 0.3] = np.float32(0.25)  # ties
    tokens = rng.integers(1, 3000, (2, n)).astype(np.uint32)
    weight = rng.integers(1, most + 1, n).astype(np.uint32)
    node, stratum = rng.integers(0, nodes, n).astype(np.uint32), rng.integers(1, 5, n).astype(np.uint8)
    rows = Rows(node, latency, tokens[0], tokens[1], stratum, np.full(n, 7, np.int64), weight)
    many = rows.take(np.repeat(np.arange(n), weight))
    many.weight = None
    return rows, many


def same(a: Any, b: Any) -> None:
    for one, two in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, two)


@settings(deadline=None, max_examples=40)
@given(n=sizes, seed=seeds, most=weights)
def test_counts(n: int, seed: int, most: int) -> None:
    rows, many = columns(n, seed, most)
    same([count(rows.node, rows.weight, 5)], [count(many.node, None, 5)])
    mask, of_many = rows.latency_s[0] > 0.3, many.latency_s[0] > 0.3
    assert total(mask, rows.weight) == total(of_many, None)
    assert int(np.sum(picked(rows.weight, mask), dtype=np.int64)) == int(of_many.sum())
    both = joined([(rows, rows.weight), (many, None)])
    assert both is not None
    assert len(both) == len(rows) + len(many)
    assert int(both.sum(dtype=np.int64)) == 2 * len(many)


def test_rows_without_weights_have_none_when_joined() -> None:
    _, many = columns(5, 1, 2)
    assert joined([(many, None), (many, None)]) is None
    assert Rows.join([many, many]).weight is None
    assert "weight" not in many.arrays()


@settings(deadline=None, max_examples=40)
@given(n=sizes, seed=seeds, most=weights, many_a_tick=st.sampled_from([10, 2000]), dense=st.booleans())
def test_histograms(n: int, seed: int, most: int, many_a_tick: int, dense: bool) -> None:
    rows, many = columns(n, seed, most)
    found = []
    before = histogram._DENSE
    for each in (rows, many):
        use = ~np.isnan(each.latency_s[0])
        series, values, weight = each.node[use].astype(np.intp) + 1, each.latency_s[0][use], picked(each.weight, use)
        plain, busy = np.zeros((4, histogram.BUCKETS), np.uint32), np.zeros(histogram.BUCKETS, np.uint16)
        tick = np.zeros((4, histogram.BUCKETS), np.uint16)
        histogram.add(plain, series, values, weight)
        histogram._DENSE = 1 if dense else 10**9
        try:
            for _ in range(3):
                histogram.add_busy(busy, values, weight)
                histogram.add_tick(tick, series, values, many_a_tick, weight)
        finally:
            histogram._DENSE = before
        found.append((plain, busy, tick))
    same(*found)


@pytest.mark.parametrize("weight", [70_000, 10**6, 2**24])
def test_a_weight_beyond_16_bits_never_wraps(weight: int) -> None:
    values, each = np.array([0.1, 0.4], np.float32), np.array([weight, weight // 3], np.uint32)
    busy, tick = np.zeros(histogram.BUCKETS, np.uint16), np.zeros((2, histogram.BUCKETS), np.uint16)
    histogram.add_busy(busy, values, each)
    histogram.add_tick(tick, np.ones(2, np.intp), values, 30_000, each)
    for counts in (busy, *tick):
        high, low = counts[histogram.bucket_of(values)].tolist()
        assert high > 30_000
        assert high / low == pytest.approx(3.0, rel=1e-3), "halved together"
    with pytest.raises(ValueError, match="does not fit"):
        histogram.add(tick, np.ones(2, np.intp), values, each)


@settings(deadline=None, max_examples=40)
@given(n=sizes, seed=seeds, most=weights, keep=st.sampled_from([1, 7, 300, 10**9]))
def test_thinned_rows(n: int, seed: int, most: int, keep: int) -> None:
    rows, many = columns(n, seed, most)
    if keep == 10**9 and len(many) > 10_000:
        keep = 300
    one, two = rows.thinned(keep), many.thinned(keep)
    assert one.weight is two.weight is None
    same(one.arrays().values(), two.arrays().values())


@settings(deadline=None, max_examples=40)
@given(n=sizes, seed=seeds, most=weights)
def test_summaries_and_medians(n: int, seed: int, most: int) -> None:
    rows, many = columns(n, seed, most)
    for sli in range(4):
        same(
            extra.median_s(rows.node, rows.latency_s[sli], 4, rows.weight), extra.median_s(many.node, many.latency_s[sli], 4)
        )  # fmt: skip
    asked = count(many.node, None, 4)
    wanted = {"mean_log_latency", "p99_log", "throughput", "n"}
    one, two = (extra.summaries(wanted, each, asked, asked, asked, 5.0) for each in (rows, many))
    for name in wanted - {"mean_log_latency"}:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    np.testing.assert_allclose(one["mean_log_latency"], two["mean_log_latency"], rtol=1e-9)


def requests(rng: np.random.Generator, slow: float) -> tuple[Any, ...]:
    """Columns of a tick of three nodes for `ingest`, and weights."""
    n = 90
    node = np.repeat(np.arange(3, dtype=np.uint32), 30)
    prompt = rng.lognormal(6, 0.7, n).astype(np.uint32)
    output = rng.lognormal(4.6, 0.6, n).astype(np.uint32)
    ttft = (0.05 + 1.8e-4 * prompt) * rng.lognormal(0, 0.25, n) * np.where(node == 1, slow, 1.0)
    latency = np.stack([ttft, np.full(n, np.nan), 0.1 * ttft, ttft + 0.02 * output]).astype(np.float32)
    columns = node, latency, prompt, np.full(n, UNKNOWN_TOKENS), np.zeros(n, np.uint32), output
    return columns, rng.integers(1, 9, n).astype(np.uint32)


def bank_of() -> SeriesBank:
    bank = SeriesBank(Detection(learning_s=60.0), 5.0, open_slots=4)
    for _ in range(3):
        bank.add_node()
    return bank


def test_a_bank_given_weights_is_the_bank_given_as_many_rows() -> None:
    """Through learning, blocks that turn, an alarm and a snapshot: every array of the state, every tick."""
    rng = np.random.default_rng(5)
    weighted, repeated = bank_of(), bank_of()
    hold = np.zeros(3, np.bool_)
    alarms = 0
    for slot in range(90):
        (node, *rest), weight = requests(rng, 1.0 if slot < 70 else 4.0)
        each = np.repeat(np.arange(len(node)), weight)
        latency, *tokens = rest
        weighted.ingest(slot, node, latency, *tokens, weight)
        repeated.ingest(slot, node[each], latency[:, each], *(column[each] for column in tokens))
        if slot in (3, 75):
            weighted = SeriesBank.restore(weighted.state(), weighted.detection)
        codes = [np.arange(90) % 7, node.astype(np.int64)]
        one = class_residuals(weighted, slot, codes, 8)
        two = class_residuals(repeated, slot, [code[each] for code in codes], 8)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            same(one, two)
        ticks = weighted.close(slot, hold), repeated.close(slot, hold)
        np.testing.assert_array_equal(ticks[0].n_tick, ticks[1].n_tick)
        np.testing.assert_array_equal(ticks[0].log_evidence, ticks[1].log_evidence)
        alarms += int(ticks[0].alarm.any())
        if slot % 10 == 9:
            one, two = weighted.dump(), repeated.dump()
            for part in ("arrays", "model", "log"):
                assert {k: bytes(v[2]) for k, v in one[part].items()} == {k: bytes(v[2]) for k, v in two[part].items()}, slot
    assert alarms


def test_a_state_with_sums_of_32_bits_is_read() -> None:
    bank = bank_of()
    rng = np.random.default_rng(1)
    for slot in range(30):
        bank.ingest(slot, *requests(rng, 1.0)[0])
        bank.close(slot, np.zeros(3, np.bool_))
    old = bank.dump()
    sums = bank._state.block_sum
    assert sums.any()
    old["arrays"]["block_sum"] = ("<i4", sums.shape, sums.astype(np.int32).tobytes())
    again = SeriesBank.restore(old, bank.detection)
    assert again._state.block_sum.dtype == np.int64
    np.testing.assert_array_equal(again._state.block_sum, sums)


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_numbers_of_requests_beyond_32_bits_stay_counts(slow: float) -> None:
    """Hostile weights, every tick of a block: nothing wraps, and the judge goes on and sees what it saw."""
    bank, hold = bank_of(), np.zeros(3, np.bool_)
    rng = np.random.default_rng(2)
    for slot in range(40):
        columns, weight = requests(rng, 1.0)
        if slot >= 20:
            weight, columns[1][:] = np.full(len(weight), 2**24, np.uint32), columns[1] * np.float32(slow)
        bank.ingest(slot, *columns, weight)
        tick = bank.close(slot, hold)
        assert (bank._state.block_mix <= 1 << 31).all()
        assert (bank._state.blocks >= 0).all()
    assert tick.n_tick.max() == 30 * 2**24
    assert tick.shift_nats[:, 0] == pytest.approx(np.log(slow), abs=0.2)
    assert tick.pool is not None
    assert tick.pool.shift_nats[0, 0] == pytest.approx(np.log(slow), abs=0.2)
    assert np.abs(bank._state.block_sum).max() > 2**31
