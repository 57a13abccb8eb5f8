"""Health of nodes: progress, silence, idleness, restarts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detectors.health import GONE_AFTER_S, IDLE, LEFT_AFTER_S, OK, STALE, STALLED, Health, NodeSamples
from schemas.policy import Health as Rules

RULES = Rules()
NAN = float("nan")


def samples(*rows: tuple[int, float, int, float, float]) -> NodeSamples:
    """(node, ts, boot, running, tokens)."""
    node, ts, boot, running, tokens = (np.array(column) for column in zip(*rows, strict=True))
    return NodeSamples(node.astype(np.intp), ts.astype(float), boot.astype(np.int64), running.astype(float), tokens.astype(float))


def codes(health: Health, t_s: float) -> list[int]:
    return health.judge(t_s, RULES, 60.0).code.tolist()


def ask(health: Health, **at: list[float]) -> None:
    health.requests(np.array(at["asked"]), np.array(at.get("served", at["asked"])))


def every_second(health: Health, start: int, end: int, tokens: Any, running: float = 3, boot: int = 7, node: int = 0) -> None:
    health.observe(samples(*((node, t, boot, running, tokens(t)) for t in range(start, end))))


def test_tokens_that_stand_still_with_requests_running_are_a_stall() -> None:
    health = Health.empty(1)
    every_second(health, 0, 50, lambda t: min(t, 25) * 100)
    assert codes(health, 44.0) == [OK]
    assert codes(health, 45.0) == [STALLED]


def test_nothing_running_is_idle_and_not_a_stall() -> None:
    health = Health.empty(1)
    every_second(health, 0, 60, lambda t: 100, running=0)
    assert codes(health, 60.0) == [IDLE]


def test_a_stall_is_timed_from_when_requests_began_to_run() -> None:
    health = Health.empty(1)
    every_second(health, 0, 100, lambda t: 100, running=0)
    every_second(health, 100, 115, lambda t: 100, running=2)
    assert codes(health, 115.0) == [OK]
    every_second(health, 115, 121, lambda t: 100, running=2)
    assert codes(health, 120.0) == [STALLED]


@pytest.mark.parametrize("boot", [7, 8])
def test_a_counter_that_starts_again_is_progress(boot: int) -> None:
    health = Health.empty(1)
    every_second(health, 0, 20, lambda t: 5000)
    every_second(health, 20, 39, lambda t: 10, boot=boot)
    assert codes(health, 39.0) == [OK]
    assert codes(health, 40.0) == [STALLED]


def test_a_new_boot_with_the_same_count_is_progress() -> None:
    health = Health.empty(1)
    every_second(health, 0, 15, lambda t: 0, boot=7)
    every_second(health, 15, 34, lambda t: 0, boot=9)
    assert codes(health, 34.0) == [OK]


def test_answers_are_progress_whatever_the_counter_says() -> None:
    health = Health.empty(1)
    every_second(health, 0, 60, lambda t: 100)
    ask(health, asked=[59.5])
    assert codes(health, 60.0) == [OK]


def test_unknown_counters_never_stall() -> None:
    health = Health.empty(1)
    every_second(health, 0, 60, lambda t: -1)
    assert codes(health, 60.0) == [OK]


def test_silence_is_stale_and_not_a_stall() -> None:
    health = Health.empty(2)
    every_second(health, 0, 60, lambda t: t)
    every_second(health, 0, 30, lambda t: 100, node=1)
    assert codes(health, 43.9) == [OK, STALLED]
    assert codes(health, 60.0) == [OK, STALE]


def test_a_node_that_sends_requests_alone_is_judged_by_its_own_rhythm() -> None:
    health = Health.empty(2)
    for t in range(0, 300, 5):
        ask(health, asked=[float(t), float(t) if t % 60 == 0 else NAN])
    tick = health.judge(300.0, RULES, 60.0)
    assert tick.code.tolist() == [OK, OK]
    assert health.judge(295 + 15 + 51, RULES, 60.0).code.tolist() == [STALE, OK]
    assert health.judge(240 + 15 + 601, RULES, 60.0).code.tolist() == [STALE, STALE]


def test_a_node_silent_for_long_is_expected_no_more() -> None:
    health = Health.empty(1)
    every_second(health, 0, 2, lambda t: t)
    assert health.judge(1 + GONE_AFTER_S - 1, RULES, 60.0).expected.tolist() == [True]
    assert health.judge(1 + GONE_AFTER_S, RULES, 60.0).expected.tolist() == [False]


def test_a_node_that_was_drained_is_missed_for_two_minutes_only() -> None:
    health = Health.empty(2)
    health.observe(samples((0, 1.0, 7, 0.0, 5.0), (1, 1.0, 7, 3.0, 5.0)))
    assert health.judge(1 + LEFT_AFTER_S - 1, RULES, 60.0).expected.tolist() == [True, True]
    assert health.judge(1 + LEFT_AFTER_S, RULES, 60.0).expected.tolist() == [False, True]


def test_order_of_samples_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    rows = [
        (int(rng.integers(3)), float(t), int(rng.integers(1, 3)), float(rng.integers(3)), float(rng.integers(50)))
        for t in range(90)
    ]
    one, two = Health.empty(3), Health.empty(3)
    one.observe(samples(*rows))
    two.observe(samples(*(rows[i] for i in rng.permutation(len(rows)))))
    for field in ("heard_s", "progress_s", "running", "tokens", "boot"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def test_growing_keeps_what_is_known() -> None:
    health = Health.empty(1)
    every_second(health, 0, 10, lambda t: t)
    health.grow(3)
    assert health.heard_s.tolist()[0] == 9.0
    assert np.isnan(health.heard_s[1:]).all()
    assert health.judge(10.0, RULES, 60.0).fresh.tolist() == [True, False, False]


def test_a_fatal_xid_counts_for_a_while() -> None:
    health = Health.empty(1)
    health.fatal_s[0] = 100.0
    assert health.judge(159.0, RULES, 60.0).fatal.tolist() == [True]
    assert health.judge(160.0, RULES, 60.0).fatal.tolist() == [False]
