"""Event F1 of benchmark D: what is an event, what is one alarm, and what hits."""

from __future__ import annotations

import numpy as np
import pytest

from bench.microsoft import Labelled, best_threshold, event_outcome


def labelled(n: int, *spans: tuple[int, int]) -> Labelled:
    label = np.zeros(n, np.bool_)
    for a, b in spans:
        label[a : b + 1] = True
    return Labelled("s", np.arange(n) * 3600.0, np.zeros(n), label)


def alarms(n: int, *rows: int) -> np.ndarray:
    found = np.zeros(n, np.bool_)
    found[list(rows)] = True
    return found


@pytest.mark.parametrize(("row", "hits", "false"), [(48, 0, 1), (49, 1, 0), (50, 1, 0), (55, 1, 0), (56, 0, 1)])
def test_an_alarm_hits_from_one_row_before_to_three_after(row: int, hits: int, false: int) -> None:
    outcome = event_outcome([labelled(100, (50, 52))], [alarms(100, row)])
    assert (outcome.events, outcome.hits, outcome.false) == (1, hits, false)


def test_alarms_fewer_than_six_rows_apart_are_one_at_the_first_row() -> None:
    series = [labelled(100, (50, 52))]
    assert event_outcome(series, [alarms(100, 46, 50)]).hits == 0, "it was called before the event, so it missed"
    assert event_outcome(series, [alarms(100, 44, 50)]).hits == 1
    assert event_outcome(series, [alarms(100, 60, 65, 70, 76)]).false == 2


def test_the_first_15_percent_are_not_scored_and_an_event_across_them_counts() -> None:
    series = [labelled(100, (3, 5), (13, 16))]
    outcome = event_outcome(series, [alarms(100, 4, 15)])
    assert (outcome.events, outcome.hits, outcome.false, outcome.rows) == (1, 1, 0, 85)


def test_f1() -> None:
    outcome = event_outcome([labelled(100, (50, 52), (80, 81))], [alarms(100, 50, 65)])
    assert (outcome.precision, outcome.recall, outcome.f1) == (0.5, 0.5, 0.5)


def test_best_threshold_of_scores() -> None:
    scores = np.zeros(100)
    scores[[50, 65]] = 3.0, 1.0
    threshold, outcome = best_threshold([labelled(100, (50, 52))], [scores])
    assert (threshold, outcome.f1) == (3.0, 1.0)
    assert best_threshold([labelled(100, (50, 52))], [np.zeros(100)])[1].f1 == 0.0
