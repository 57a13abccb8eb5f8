"""The breaker's table, its times and its counts."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from detectors.breaker import MOVES, BreakerRecord, Cause, IllegalMove, State, admitted, may_trip, move, not_after_s, step
from schemas.policy import Breaker as Rules

RULES = Rules()


def opened(subject: str = "gpu-1", t_s: float = 1000.0, rules: Rules = RULES) -> BreakerRecord:
    return move(BreakerRecord(subject=subject), "trip", t_s, rules)


def half_open(t_s: float = 1100.0) -> BreakerRecord:
    return move(opened(), "open_over", t_s, RULES)


def test_only_the_moves_of_the_table_are_legal() -> None:
    for state, cause in itertools.product(get_args(State), get_args(Cause)):
        record = BreakerRecord(subject="n", state=state, since_s=0.0)
        if (state, cause) in MOVES:
            assert move(record, cause, 10.0, RULES).state == MOVES[state, cause]
        else:
            with pytest.raises(IllegalMove, match="no move"):
                move(record, cause, 10.0, RULES)


def test_open_time_doubles_with_each_failed_probe_and_is_bounded() -> None:
    record, times = opened(), []
    t_s = 1000.0
    for _ in range(6):
        assert record.until_s is not None
        times.append(record.until_s - t_s)
        t_s = record.until_s
        record = move(record, "open_over", t_s, RULES)
        record = move(record, "probes_bad", t_s + 5, RULES)
        t_s += 5
    assert times == sorted(times)
    for k, seconds in enumerate(times):
        assert min(30 * 2**k, 300) <= round(seconds, 6) <= min(33 * 2**k, 300)


def test_silence_of_probes_reopens_with_the_same_back_off() -> None:
    record = half_open(1100.0)
    record, cause = step(record, 1219.0, 3, 0, RULES)
    assert cause is None
    record, cause = step(record, 1220.0, 0, 0, RULES)
    assert cause == "no_verdict"
    again = move(record, "no_verdict", 1220.0, RULES)
    assert (again.state, again.streak) == ("OPEN", 1)


def test_half_open_closes_on_enough_good_probes_after_the_least_time() -> None:
    record, cause = step(half_open(1100.0), 1105.0, 12, 0, RULES)
    assert cause is None  # too early
    record, cause = step(record, 1115.0, 0, 0, RULES)
    assert cause == "ramp"
    assert step(record, 1115.0, 0, 0, Rules(close_ramp=()))[1] == "probes_good"
    assert step(record, 1115.0, 0, 0, RULES, ramps=False)[1] == "probes_good"


def test_traffic_comes_back_in_steps() -> None:
    record, t_s, shares = move(half_open(1100.0), "ramp", 1115.0, RULES), 1115.0, []
    while record.state == "HALF_OPEN":
        assert record.until_s == t_s + 15
        shares.append(admitted(record, 0.0, RULES))
        t_s += 10
        record, cause = step(record, t_s, 1000, 40, RULES)  # 96 % is what ordinary requests may do
        assert cause is None
        t_s += 5
        record, cause = step(record, t_s, 0, 0, RULES)
        assert cause is not None
        record = move(record, cause, t_s, RULES)
    assert (shares, record.state, t_s) == ([0.1, 0.5], "CLOSED", 1145.0)
    assert (record.ramp, admitted(record, 0.1, RULES)) == (0, 0.1)
    first = move(half_open(), "ramp", 1115.0, RULES)
    assert admitted(first, 0.8, RULES) == pytest.approx(0.82)  # of what was taken away a tenth


def test_a_ramp_that_fails_opens_for_longer_and_probes_of_before_do_not_count() -> None:
    record = half_open(1100.0)
    record, cause = step(record, 1120.0, 1000, 1, RULES)
    assert cause == "ramp"
    record = move(record, cause, 1120.0, RULES)
    record, cause = step(record, 1125.0, 0, 1, RULES)
    assert cause is None  # one alone is chance
    record, cause = step(record, 1130.0, 10, 1, RULES)
    assert cause == "relapse"
    again = move(record, cause, 1130.0, RULES)
    assert (again.state, again.streak, again.ramp) == ("OPEN", 2, 0)


def test_two_hosts_must_agree_where_two_report() -> None:
    record, cause = step(half_open(1100.0), 1120.0, 30, 0, RULES, hosts_ok={7}, n_hosts=3)
    assert cause is None
    assert step(record, 1125.0, 1, 0, RULES, hosts_ok={7}, n_hosts=3)[1] is None
    assert step(record, 1125.0, 1, 0, RULES, hosts_ok={9}, n_hosts=3)[1] == "ramp"
    assert step(record, 1125.0, 1, 0, RULES, hosts_ok={7}, n_hosts=1)[1] == "ramp"  # nobody else there
    assert step(record, 1125.0, 1, 0, Rules(probe_hosts=1), hosts_ok={7}, n_hosts=3)[1] == "ramp"  # only one may probe
    assert step(record, 1220.0, 1, 0, RULES, hosts_ok={7}, n_hosts=3)[1] == "no_verdict"
    assert move(record, "no_verdict", 1220.0, RULES).hosts_ok == ()


def test_one_bad_probe_of_few_does_not_close_and_two_reopen() -> None:
    record, cause = step(half_open(1100.0), 1120.0, 10, 1, RULES)
    assert cause is None  # 10 of 11 is below 95 %
    _, cause = step(record, 1125.0, 9, 0, RULES)
    assert cause == "ramp"  # 19 of 20
    _, cause = step(record, 1125.0, 50, 1, RULES)
    assert cause == "probes_bad"


def test_a_closed_breaker_stays_closed_for_a_while_and_forgets_its_streak_later() -> None:
    closed = move(half_open(1100.0), "probes_good", 1120.0, RULES)
    assert not may_trip(closed, 1179.0, RULES)
    assert may_trip(closed, 1180.0, RULES)
    assert move(closed, "trip", 1180.0, RULES).streak == 2
    assert move(closed, "trip", 1720.0, RULES).streak == 1


def test_flapping_latches() -> None:
    record, t_s = BreakerRecord(subject="n"), 0.0
    for _ in range(4):
        assert may_trip(record, t_s, RULES)
        record = move(record, "trip", t_s, RULES)
        last, t_s = record, t_s + 35
        if not record.latched:
            record = move(move(record, "open_over", t_s, RULES), "probes_good", t_s + 15, RULES)
        t_s += 80
    assert last.latched
    assert last.until_s is not None
    assert last.since_s is not None
    assert last.until_s - last.since_s == RULES.latch_s


def test_the_news_of_the_next_state_arrives_before_the_entry_lapses() -> None:
    record = opened()
    assert record.until_s is not None
    assert not_after_s(record, RULES, 20.0) == record.until_s + 20.0
    longest = BreakerRecord(subject="n", state="OPEN", since_s=0.0, until_s=300.0)
    assert not_after_s(longest, RULES, 20.0) == 300.0
    for streak in range(1, 8):
        record = move(
            BreakerRecord(subject="n", state="HALF_OPEN", since_s=0.0, streak=streak), "probes_bad", 10.0, RULES, grace_s=20.0
        )
        end = not_after_s(record, RULES, 20.0)
        assert end is not None
        assert record.until_s is not None
        assert record.until_s + 20.0 <= end + 1e-6
        assert end <= 10.0 + RULES.open_max_s
    assert not_after_s(BreakerRecord(subject="n"), RULES, 20.0) is None


def test_jitter_is_the_same_each_time_and_differs_between_subjects() -> None:
    assert opened("a") == opened("a")
    assert len({opened(f"gpu-{i}").until_s for i in range(20)}) > 15


def test_overrides_end_by_themselves() -> None:
    forced = move(half_open(), "force_open", 2000.0, RULES, until_s=2600.0)
    assert step(forced, 2599.0, 0, 0, RULES)[1] is None
    assert step(forced, 2600.0, 0, 0, RULES)[1] == "release"
    assert move(forced, "release", 2600.0, RULES).state == "CLOSED"
    assert step(move(forced, "disable", 2100.0, RULES), 1e12, 0, 0, RULES)[1] is None
