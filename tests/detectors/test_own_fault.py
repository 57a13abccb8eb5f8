"""One bad node stands out, a bad fleet does not."""

from __future__ import annotations

import numpy as np

from detectors.own_fault import peers_calm, rare, ratio_of_others, stands_out


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


def own(shift: np.ndarray, alarm: list[bool], known: list[bool] | None = None) -> list[bool]:
    use = (np.ones(len(shift), bool) if known is None else np.array(known))[:, None]
    return stands_out(np.array(alarm)[:, None], use, peers_calm(shift, use, 0.02), 0.3)[:, 0].tolist()


def test_one_slow_node_stands_out() -> None:
    assert own(column(1.1, 0.01, -0.02, 0.0), [True, False, False, False]) == [True, False, False, False]


def test_a_fleet_that_drifts_together_does_not_stand_out_even_when_one_alarms_first() -> None:
    assert own(column(1.1, 1.0, 1.05, 1.08), [True, False, False, False]) == [False] * 4
    assert own(column(1.1, 1.0, 1.05, 1.08), [True] * 4) == [False] * 4


def test_a_worse_node_in_a_fleet_that_drifts_stands_out_before_the_others_alarm() -> None:
    assert own(column(2.0, 0.3, 0.3, 0.3), [True, False, False, False])[0]


def test_a_tail_fault_moves_the_mean_little_and_stands_out_all_the_same() -> None:
    assert own(column(0.05, 0.01, -0.01, 0.0), [True, False, False, False])[0]


def test_without_a_comparable_peer_nobody_can_tell() -> None:
    assert own(column(1.0), [True]) == [False]
    assert own(column(1.0, 0.0, 0.0), [True, False, False], known=[True, False, False])[0] is False


def test_two_bad_nodes_of_ten_both_stand_out_and_four_do_not() -> None:
    shift = column(*([1.0] * 2 + [0.0] * 8))
    assert own(shift, [True] * 2 + [False] * 8)[:2] == [True, True]
    assert own(column(*([1.0] * 4 + [0.0] * 6)), [True] * 4 + [False] * 6)[:4] == [False] * 4


def test_ratio_of_others_leaves_the_node_out() -> None:
    ratio = ratio_of_others(np.array([10, 1, 0]), np.array([100, 50, 50]), np.array([True, True, True]))
    np.testing.assert_allclose(ratio, [0.01, 10 / 150, 11 / 150])
    assert np.isnan(ratio_of_others(np.array([1]), np.array([5]), np.array([True]))[0])


def test_others_whose_evidence_rises_count_as_moved() -> None:
    alarm, known = np.array([[True], [False], [False], [False]]), np.ones((4, 1), bool)
    calm = peers_calm(column(0.1, 0.0, 0.01, 0.0), known, 0.02)
    stirred = np.array([[True], [True], [True], [False]])
    assert stands_out(alarm, known, calm, 0.3).any()
    assert not stands_out(alarm, known, calm, 0.3, stirred).any()


def test_rare_is_what_few_others_have() -> None:
    flag = np.array([[True], [True], [False], [False], [False]])
    assert rare(flag, np.ones((5, 1), bool), 0.3)[:, 0].tolist() == [True, True, False, False, False]
