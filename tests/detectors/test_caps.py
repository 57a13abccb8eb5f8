"""Caps after the action, velocity, freeze and thaw."""

from __future__ import annotations

import pytest

from detectors.caps import CapState, after_open, latch_limit, may_open, may_take, open_limit, step_freeze, velocity_limit
from schemas.policy import Caps

CAPS = Caps()


@pytest.mark.parametrize(
    ("n", "limit"),
    [(0, 0), (1, 0), (2, 0), (3, 1), (9, 1), (10, 1), (19, 1), (20, 2), (100, 10), (199, 19), (200, 20), (5000, 20)],
)
def test_open_limit(n: int, limit: int) -> None:
    assert open_limit(n, CAPS) == limit


@pytest.mark.parametrize(("n", "share", "limit"), [(0, 0.2, 1), (12, 0.2, 2), (12, 0.05, 1), (40, 0.05, 2), (100, 0.29, 29)])
def test_latch_limit(n: int, share: float, limit: int) -> None:
    assert latch_limit(n, share) == limit


def test_a_share_of_nothing_means_nothing_even_in_a_small_pool() -> None:
    assert open_limit(5, Caps(share=0.0)) == 0


def test_a_share_is_not_rounded_down_by_binary_fractions() -> None:
    assert open_limit(30, Caps(share=0.1)) == 3
    assert open_limit(1000, Caps(share=0.29, absolute=1000)) == 290


@pytest.mark.parametrize(("n", "limit"), [(3, 1), (99, 1), (100, 2), (250, 5), (10_000, 5)])
def test_velocity_limit(n: int, limit: int) -> None:
    assert velocity_limit(n, CAPS) == limit


def test_the_cap_counts_the_one_about_to_open() -> None:
    assert may_open(CapState(), 0.0, 20, 1, CAPS) == ""
    assert "cap is 2" in may_open(CapState(), 0.0, 20, 2, CAPS)


def test_velocity_is_over_the_last_minute() -> None:
    state = after_open(CapState(), 100.0)
    assert "opened in the last 60 s" in may_open(state, 159.0, 40, 1, CAPS)
    assert may_open(state, 160.0, 40, 1, CAPS) == ""
    assert after_open(state, 161.0).opens_s == (161.0,)


def test_a_correlated_failure_freezes_and_thaws_after_normality() -> None:
    state = step_freeze(CapState(), 0.0, 10, 3, 10, 10, CAPS)
    assert state.frozen_since_s is None  # 30 % is not more than 30 %
    state = step_freeze(state, 5.0, 10, 4, 10, 10, CAPS)
    assert state.cause == "correlated"
    assert "frozen" in may_open(state, 5.0, 10, 0, CAPS)
    state = step_freeze(state, 10.0, 10, 0, 10, 10, CAPS)
    state = step_freeze(state, 60.0, 10, 4, 10, 10, CAPS)  # again: the wait starts over
    state = step_freeze(state, 65.0, 10, 0, 10, 10, CAPS)
    state = step_freeze(state, 180.0, 10, 0, 10, 10, CAPS)
    assert state.frozen_since_s == 5.0
    state = step_freeze(state, 185.0, 10, 0, 10, 10, CAPS)
    assert may_open(state, 185.0, 10, 0, CAPS) == ""


def test_one_bad_node_is_never_correlated() -> None:
    assert step_freeze(CapState(), 0.0, 3, 1, 3, 3, CAPS).cause is None


def test_lost_telemetry_freezes() -> None:
    assert step_freeze(CapState(), 0.0, 2, 0, 2, 4, CAPS).cause == "telemetry"
    assert step_freeze(CapState(), 0.0, 3, 0, 3, 4, CAPS).cause is None, "one silent node is a node that died"
    assert step_freeze(CapState(), 0.0, 17, 0, 17, 20, CAPS).cause is None  # 85 % is enough


def test_where_nothing_is_ever_opened_nothing_freezes() -> None:
    assert step_freeze(CapState(), 0.0, 0, 0, 0, 2, CAPS).cause is None


def test_shares_of_other_scopes_are_counted_after_the_action() -> None:
    assert may_take(CapState(), 0.0, 0.05, 0.05, 0.10, "the traffic", CAPS) == ""
    assert "10.0%" in may_take(CapState(), 0.0, 0.05, 0.06, 0.10, "the traffic", CAPS)
    assert "the traffic" in may_take(CapState(), 0.0, 0.11, 0.0, 0.10, "the traffic", CAPS)


def test_opens_of_other_scopes_a_minute_are_few_and_a_freeze_holds_them_back() -> None:
    state = CapState()
    for i in range(CAPS.velocity):
        assert may_take(state, float(i), 0.0, 0.01, 0.10, "the traffic", CAPS) == ""
        state = after_open(state, float(i))
    assert "opened in the last" in may_take(state, 30.0, 0.0, 0.01, 0.10, "the traffic", CAPS)
    assert may_take(state, 60.0, 0.0, 0.01, 0.10, "the traffic", CAPS) == ""
    assert "frozen" in may_take(CapState(frozen_since_s=0.0, cause="correlated"), 1.0, 0.0, 0.01, 0.10, "the traffic", CAPS)
