import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detectors.peers import has_left, shift_against_peers


@given(hnp.arrays(float, (2, 7), elements=st.floats(-3, 3)), hnp.arrays(bool, (2, 7)))
def test_it_is_the_shift_less_the_median_of_the_others(shift, usable):
    found = shift_against_peers(shift, usable)
    for sli in range(2):
        for node in range(7):
            others = [shift[sli, i] for i in range(7) if i != node and usable[sli, i]]
            if usable[sli, node] and others:
                assert np.isclose(found[sli, node], shift[sli, node] - np.median(others))
            else:
                assert np.isnan(found[sli, node])


def test_a_fleet_drifting_together_has_no_odd_one_out():
    assert np.abs(shift_against_peers(np.full((1, 5), 1.1), np.ones((1, 5), bool))).max() == 0


def test_nan_shifts_are_no_peers():
    found = shift_against_peers(np.array([[np.nan, 0.5, 0.1]]), np.ones((1, 3), bool))
    assert np.isnan(found[0, 0])
    assert np.allclose(found[0, 1:], [0.4, -0.4])


def test_one_of_many_that_wobble_has_not_left_and_one_far_out_has():
    rng = np.random.default_rng(5)
    shift = 0.1 * rng.standard_normal((40, 2))
    known = np.ones((40, 2), bool)
    assert not has_left(shift, known, 0.2).any()
    shift[7, 1] = 0.6
    assert np.argwhere(has_left(shift, known, 0.2)).tolist() == [[7, 1]]
    known[7, 1] = False
    assert not has_left(shift, known, 0.2).any()


def test_three_nodes_say_nothing_about_one_of_them():
    shift = np.array([[0.6], [0.0], [np.nan], [0.01]])
    assert not has_left(shift, np.ones((4, 1), bool), 0.2).any()
