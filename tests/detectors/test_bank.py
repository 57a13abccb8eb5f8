import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detectors.bank import ACTIVE, CENSORED, EMPIRICAL, EXTRAPOLATED, FROZEN, LEARNING, BankTick, SeriesBank
from schemas.errors import SchemaError
from schemas.policy import Detection

MINUTE = 12  # ticks of 5 s
TTFT, TPOT, QUEUE, E2E = range(4)


def same(a: BankTick, b: BankTick) -> bool:
    """Equal to the last bit, pool included."""
    for f in dataclasses.fields(BankTick):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name == "pool":
            if x is not None and not same(x, y):
                return False
        elif not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            return False
    return True


@pytest.mark.parametrize("rate", [5, 25, 250])
def test_healthy_nodes_stay_quiet_for_half_an_hour(fleet, rate):
    ticks = fleet(rate=rate, seed=rate).run(30 * MINUTE)
    assert not any(t.alarm.any() or t.improved.any() or t.mix_alarm.any() for t in ticks)
    assert not any(t.pool.alarm.any() or t.pool.mix_alarm.any() for t in ticks)


def test_learning_is_over_after_two_minutes(fleet):
    ticks = fleet().run(3 * MINUTE)
    assert (ticks[2 * MINUTE - 2].baseline == LEARNING).all()
    assert (ticks[2 * MINUTE].baseline == ACTIVE).all()


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_slow_node_is_accused_within_half_a_minute_and_alone(fleet, factor):
    pool = fleet()
    pool.run(20 * MINUTE)
    ticks = pool.run(6, slower=[1, factor, 1, 1])
    last = ticks[-1]
    assert last.alarm[1, [TTFT, TPOT, E2E]].all()
    assert not last.alarm[[0, 2, 3]].any()
    assert not last.alarm[1, QUEUE]
    assert (last.log_evidence[1, [TTFT, TPOT, E2E]] >= last.log_threshold[1, [TTFT, TPOT, E2E]]).all()


def test_shift_and_peers_measure_the_slowdown(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    last = pool.run(2 * MINUTE, slower=[1, 3, 1, 1])[-1]
    assert last.shift_nats[1, :2] == pytest.approx(np.log(3), abs=0.1)
    assert last.peer_shift_nats[1, :2] == pytest.approx(np.log(3), abs=0.1)
    assert np.abs(last.peer_shift_nats[[0, 2, 3], :2]).max() < 0.1
    assert last.kl_service_nats[1, TTFT] > 1
    assert last.tail_above[1, [TTFT, TPOT]].all()


def test_a_fleet_that_slows_together_has_no_odd_one_out(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    last = pool.run(2 * MINUTE, slower=[3, 3, 3, 3])[-1]
    assert last.pool.alarm[0, [TTFT, TPOT, E2E]].all()
    assert np.abs(last.peer_shift_nats[:, :2]).max() < 0.15


def test_a_sevenfold_shift_of_prompt_length_is_a_workload_shift(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    pool.prompt_median = 4000
    ticks = pool.run(10 * MINUTE)
    assert not any(t.alarm.any() or t.pool.alarm.any() for t in ticks)
    assert any(t.pool.mix_alarm.all() for t in ticks[:6])
    seen = ticks[2 * MINUTE].pool
    assert (seen.kl_mix_nats > 1).all()
    assert (seen.kl_service_nats < 0.12).all()


def test_a_slow_node_is_seen_through_a_shift_of_the_mix(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    pool.prompt_median = 4000
    pool.run(10 * MINUTE)
    last = pool.run(6, slower=[1, 1, 1, 3])[-1]
    assert last.alarm[3, [TTFT, TPOT]].all()
    assert not last.alarm[:3].any()


def test_kl_is_the_sum_of_its_parts(fleet):
    pool = fleet()
    for tick in [*pool.run(10 * MINUTE)[2 * MINUTE :], *pool.run(MINUTE, slower=[1, 1, 2, 1])]:
        assert tick.kl_nats == pytest.approx(tick.kl_mix_nats + tick.kl_service_nats, abs=1e-9, nan_ok=True)


def test_an_improvement_is_no_fault(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    last = pool.run(MINUTE, slower=[1, 0.5, 1, 1])[-1]
    assert not last.alarm.any()
    assert last.improved[1, [TTFT, TPOT]].all()
    assert (last.shift_nats[1, :2] < -0.4).all()


def test_an_incident_never_becomes_normal_and_its_run_up_is_dropped(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    before = pool.bank._state.base[:, 2].sum()
    frozen = pool.run(60 * MINUTE, slower=[1, 3, 1, 1])[-1]
    assert (frozen.baseline[1, [TTFT, TPOT]] == FROZEN).all()
    assert frozen.alarm[1, [TTFT, TPOT]].all()
    assert pool.bank._state.base[[TTFT, TPOT], 2].sum() < before
    well = pool.run(MINUTE)[-1]
    assert not well.alarm.any()
    assert (well.baseline == ACTIVE).all()
    assert pool.run(6, slower=[1, 3, 1, 1])[-1].alarm[1, [TTFT, TPOT]].all()


def test_a_held_node_does_not_learn(fleet):
    pool = fleet()
    pool.run(5 * MINUTE)
    learned = pool.bank._state.base.copy()
    last = pool.run(20 * MINUTE, hold=np.array([False, True, False, False]))[-1]
    assert (last.baseline[1] == FROZEN).all()
    assert np.array_equal(pool.bank._state.base[:, 2], learned[:, 2])
    assert (pool.bank._state.base[:, 1].sum(axis=-1) > learned[:, 1].sum(axis=-1) * 1.5).all()


def test_a_new_node_learns_while_the_others_judge(fleet):
    pool = fleet()
    pool.run(10 * MINUTE)
    assert pool.bank.add_node() == 4
    pool.nodes = 5
    young = pool.run(MINUTE, slower=[1, 1, 1, 1, 2])[-1]
    assert (young.baseline[4] == LEARNING).all()
    assert (young.baseline[:4] == ACTIVE).all()
    grown = pool.run(4 * MINUTE, slower=[1, 1, 1, 1, 2])[-1]
    assert (grown.baseline == ACTIVE).all()
    assert not grown.alarm.any()  # slower from the start: that is this node's normal
    assert pool.run(6, slower=[1, 1, 1, 1, 6])[-1].alarm[4, [TTFT, TPOT]].all()


def test_many_nodes_make_the_arrays_grow(fleet):
    pool = fleet(nodes=3)
    pool.run(5 * MINUTE)
    before = pool.bank._state.base[:, :4].copy()
    for _ in range(40):
        pool.bank.add_node()
    pool.nodes = 43
    last = pool.run(5 * MINUTE)[-1]
    assert last.alarm.shape == (43, 4)
    assert (last.baseline == ACTIVE).all()
    assert (pool.bank._state.base[:, :4].sum(axis=-1) >= before.sum(axis=-1) * 0.99).all()


def test_a_rebased_node_learns_anew(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    pool.run(MINUTE, slower=[1, 3, 1, 1])
    pool.bank.rebase(np.array([False, True, False, False]))
    young = pool.run(MINUTE, slower=[1, 3, 1, 1])[-1]
    assert (young.baseline[1] == LEARNING).all()
    assert not young.alarm.any()
    grown = pool.run(4 * MINUTE, slower=[1, 3, 1, 1])[-1]
    assert (grown.baseline[1] == ACTIVE).all()
    assert not grown.alarm[1].any()


def test_a_pool_rebased_as_a_whole_forgets_its_model(fleet):
    pool = fleet()
    pool.run(10 * MINUTE)
    pool.bank.rebase(np.ones(4, bool))
    slow = [4, 4, 4, 4]
    ticks = pool.run(10 * MINUTE, slower=slow)
    assert (ticks[0].baseline == LEARNING).all()
    assert (ticks[-1].baseline == ACTIVE).all()
    assert not any(t.alarm.any() or t.pool.alarm.any() for t in ticks)
    assert pool.run(6, slower=[4, 12, 4, 4])[-1].alarm[1, [TTFT, TPOT]].all()


def test_reset_forgets_the_evidence(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    assert pool.run(MINUTE, slower=[1, 3, 1, 1])[-1].alarm[1].any()
    pool.bank.reset_evidence(np.array([False, True, False, False]))
    assert not pool.tick(rate=0).alarm.any()


def test_alarm_time_is_counted_against_the_frozen_baseline(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    ticks = pool.run(6 * MINUTE, slower=[1, 3, 1, 1])
    assert ticks[-1].drift_s[1, TPOT] >= 340
    assert ticks[-1].periods[1, TPOT] >= 5
    assert (ticks[-1].drift_s[0] == 0).all()


def test_a_silent_pool_repeats_itself_and_an_alarm_outlasts_silence(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    last = pool.run(MINUTE, slower=[1, 3, 1, 1])[-1]
    silent = [pool.close() for _ in range(30 * MINUTE)][-1]
    assert (silent.n_tick == 0).all()
    assert np.array_equal(silent.alarm, last.alarm)
    assert silent.drift_s[1, TPOT] == pytest.approx(last.drift_s[1, TPOT] + 30 * MINUTE * 5)


def test_slots_left_out_are_empty_ones(fleet):
    pool, skipping = fleet(), fleet()
    for one in (pool, skipping):
        one.run(10 * MINUTE)
    for _ in range(90):
        pool.close()
    skipping.slot += 90
    assert same(pool.tick(), skipping.tick())


def test_sparse_series_learn_by_count_and_get_long_windows(fleet):
    """One value in five minutes."""
    pool = fleet(nodes=1, rate=1, tick_s=300.0)
    ticks = pool.run(1200)
    assert (ticks[290].baseline == LEARNING).all()
    assert (ticks[310].baseline == ACTIVE).all()
    assert ticks[-1].enough.all()
    assert (ticks[-1].n >= 100).all()
    assert not any(t.alarm.any() for t in ticks)
    assert any(t.alarm[0, [TTFT, TPOT]].all() for t in pool.run(30, slower=[3.0]))


def test_a_trickle_is_not_enough(fleet):
    pool = fleet(nodes=2)
    pool.run(5 * MINUTE)
    pool.bank.add_node()
    for i in range(25 * MINUTE):
        node, latency, prompt, cached, adapter, output = pool.requests()
        if i % MINUTE == 0:
            node[0] = 2
        pool.bank.ingest(pool.slot, node, latency, prompt, cached, adapter, output)
        last = pool.close()
    assert (last.baseline[2] == LEARNING).all()
    assert not last.enough[2].any()
    assert not last.alarm.any()


def test_an_sli_that_is_never_measured_stays_silent(fleet):
    pool = fleet()
    for i in range(20 * MINUTE):
        node, latency, *rest = pool.requests([3, 1, 1, 1] if i > 19 * MINUTE else None)
        latency[QUEUE] = np.nan
        pool.bank.ingest(pool.slot, node, latency, *rest)
        last = pool.close()
    assert (last.n[:, QUEUE] == 0).all()
    assert np.isnan(last.kl_nats[:, QUEUE]).all()
    assert (last.baseline[:, QUEUE] == LEARNING).all()
    assert last.alarm[0, TTFT]


def test_constant_latencies(fleet):
    pool = fleet()

    def tick(factor):
        node, latency, *rest = pool.requests()
        latency[:] = np.array([0.2, 0.02, 0.0, 3.0], np.float32)[:, None]
        latency[:, node == 0] *= factor
        pool.bank.ingest(pool.slot, node, latency, *rest)
        return pool.close()

    assert not any(tick(1.0).alarm.any() for _ in range(20 * MINUTE))
    assert [tick(2.0) for _ in range(6)][-1].alarm[0, [TTFT, TPOT, E2E]].all()


def test_p999_of_a_window_is_an_extrapolation_and_says_so(fleet):
    pool = fleet()
    first = pool.tick()
    assert np.isnan(first.p999_s).all()
    assert (first.p999_kind == CENSORED).all()
    last = pool.run(5 * MINUTE // 2)[-1]
    assert (last.p999_kind == EXTRAPOLATED).all()
    assert (last.p999_lo_s < last.p999_s).all()
    assert (last.p999_s < last.p999_hi_s).all()
    assert (last.p999_s < last.threshold_s).all()
    truth = 0.018 * np.exp(0.125 * 3.09)
    assert last.p999_s[:, TPOT] == pytest.approx(truth, rel=0.2)


def test_p999_of_a_full_window_is_an_order_statistic_and_its_threshold_is_near(fleet):
    pool = fleet()
    ticks = pool.run(45 * MINUTE)
    full = [t for t in ticks if (t.p999_kind == EMPIRICAL).all()]
    assert len(full) > 10 * MINUTE
    truth = 0.018 * np.exp(0.125 * 3.09)
    assert full[-1].p999_s[:, TPOT] == pytest.approx(truth, rel=0.1)
    assert (full[-1].p999_s < full[-1].threshold_s).all()
    assert (full[-1].threshold_s[:, TPOT] < 2.5 * truth).all()
    assert not any(t.tail_above.any() for t in ticks)


def test_published_method(fleet):
    """With full windows the published rule works; with 50 samples it would alarm on nothing."""
    pool = fleet(rate=250, method="seed", kappa=1.82)
    assert not any(t.alarm.any() for t in pool.run(20 * MINUTE))
    assert pool.run(4 * MINUTE, slower=[1, 3, 1, 1])[-1].alarm[1, [TTFT, TPOT]].all()


# -- one result, however it was reached -----------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_order_and_framing_do_not_matter(fleet, seed, frames):
    straight, shuffled = fleet(rate=20), fleet(rate=20)
    rng = np.random.default_rng(seed)
    for i in range(4 * MINUTE):
        columns = straight.requests([1, 3, 1, 1] if i > 3 * MINUTE else None)
        straight.bank.ingest(straight.slot, *columns)
        for part in np.array_split(rng.permutation(len(columns[0])), frames):
            shuffled.bank.ingest(shuffled.slot, *(c[..., part] for c in columns))
        assert same(straight.close(), shuffled.close())


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40 * MINUTE // 10))
def test_a_restored_bank_continues_as_if_nothing_had_happened(fleet, at):
    whole, parts = fleet(rate=15), fleet(rate=15)
    for i in range(6 * MINUTE):
        slower = [1, 1, 1, 3] if i > 5 * MINUTE else None
        a, b = whole.requests(slower), parts.requests(slower)
        whole.bank.ingest(whole.slot, *a)
        parts.bank.ingest(parts.slot, *b)
        if i == at:  # with a tick open
            parts.bank = SeriesBank.restore(parts.bank.state(), parts.bank.detection)
        assert same(whole.close(), parts.close())
    assert whole.bank.state() == parts.bank.state()


def test_late_rows_of_an_open_tick_count_there(fleet):
    pool, late = fleet(), fleet()
    first = previous = None
    for i in range(4 * MINUTE):
        columns = pool.requests()
        pool.bank.ingest(i, *columns)
        half = len(columns[0]) // 2
        late.bank.ingest(i, *(c[..., :half] for c in columns))
        if i:
            late.bank.ingest(i - 1, *(c[..., half:] for c in previous))
            assert same(first, late.close())
        first, previous = pool.close(), columns


def test_closed_ticks_and_unknown_nodes_are_refused(fleet):
    pool = fleet()
    columns = pool.requests()
    pool.tick()
    with pytest.raises(ValueError, match="closed"):
        pool.bank.ingest(0, *columns)
    with pytest.raises(ValueError, match="closed"):
        pool.bank.close(0, np.zeros(4, bool))
    with pytest.raises(ValueError, match="never added"):
        pool.bank.ingest(1, columns[0] + 4, *columns[1:])


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x81\xa7version\x02", b"\x81\xa7version\x01", b"garbage" * 100])
def test_bytes_that_are_no_state_are_refused(raw):
    with pytest.raises(SchemaError):
        SeriesBank.restore(raw, Detection())


def test_a_state_of_other_settings_is_refused(fleet):
    pool = fleet()
    pool.run(5)
    with pytest.raises(SchemaError, match="settings"):
        SeriesBank.restore(pool.bank.state(), Detection(max_strata=8))


def test_a_jump_is_sudden_and_a_climb_is_not_at_first(fleet):
    pool = fleet()
    pool.run(20 * MINUTE)
    jump = pool.run(3, slower=[1, 2, 1, 1])[-1]
    assert jump.sudden[1, [TTFT, TPOT, E2E]].all()
    assert not jump.sudden[[0, 2, 3]].any()
    pool = fleet(seed=1)
    pool.run(20 * MINUTE)
    climb = [pool.tick(slower=[1, 1 + 1.5 * k / (15 * MINUTE), 1, 1]) for k in range(15 * MINUTE)]
    began = next(i for i, tick in enumerate(climb) if tick.alarm[1, TTFT])
    assert not any(tick.sudden.any() for tick in climb[: began + 12])
