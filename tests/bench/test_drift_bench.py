"""Benchmark B: worlds whose truth is known, counts of alarms, and the whole command at its smallest."""

from __future__ import annotations

import numpy as np
import pytest

from bench import drift
from bench.drift import Count, Size
from bench.drift_peers import RIVER, river_false_alarms
from bench.drift_worlds import FAULTS, SERIES_PER_NODE, WORLDS, World

SMALL = Size(series=8, warm=240, scored=60, peers=1, daily=0)


def test_a_world_is_the_same_for_the_same_seed_and_faults_are_as_large_as_they_say() -> None:
    setting = WORLDS[1]
    a, b, slow = World(setting, 400, 3), World(setting, 400, 3), World(setting, 400, 3)
    healthy = a.tick()
    assert np.array_equal(healthy, b.tick())
    assert healthy.shape == (SERIES_PER_NODE, 100 * setting.requests)
    assert np.median(slow.tick(FAULTS[0])) / np.median(healthy) == pytest.approx(2.0, rel=0.02)
    tail = FAULTS[2]
    share = float((World(setting, 400, 4).tick(tail) > 0.1 * np.exp(4 * 0.5)).mean())
    assert share == pytest.approx(tail.share * 0.56, rel=0.15)  # P(8 x lognormal(0.5) > 4 sigma) = P(z > -0.16)


def test_wobble_has_the_stated_spread() -> None:
    world = World(WORLDS[4], 400, 1)
    logs = [np.log(world.tick().reshape(400, -1)).mean(axis=1) for _ in range(200)]
    noise = 0.5**2 / WORLDS[4].requests
    assert np.sqrt(np.var(np.stack(logs)) - noise) == pytest.approx(0.15, rel=0.1)


def test_an_alarm_is_counted_when_it_begins() -> None:
    up = np.array([[True], [False]])
    assert drift._begun(iter([~up, up, up, ~up, up])) == 4


def test_the_bound_on_a_rate_is_poissons() -> None:
    assert Count(0, 300.0).upper_per_day() == pytest.approx(0.01, rel=0.01)  # the rule of three
    assert Count(5, 1000.0).upper_per_day() > 0.01 > Count(2, 1000.0).upper_per_day()


def test_a_twin_sees_the_future_that_the_original_does() -> None:
    driven = drift.Driven(World(WORLDS[3], 8, 0))
    for _ in range(60):
        driven.tick()
    twin = driven.twin()
    assert np.array_equal(driven.tick().log_evidence, twin.tick().log_evidence)


def test_peers_warm_up_before_alarms_count() -> None:
    adwin = RIVER[0]
    alarms, days = river_false_alarms(adwin, WORLDS[0], 1, 0)
    assert days == pytest.approx(1.0)
    assert alarms == 0


def test_the_command_prints_every_world_and_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "QUICK", SMALL)
    monkeypatch.setattr(drift, "WORLDS", WORLDS[3:4])
    monkeypatch.setattr(drift, "RIVER", RIVER[:1])
    report = drift.run(1, quick=True)
    names = [row[0].strip() for row in report.rows]
    assert names == [WORLDS[3].name, "slodrift default", "published rule", "river ADWIN", "dummy, every 6 h"]
    assert {text.split(":")[0] for text, _ in report.bars} == {WORLDS[3].name, *(f.name for f in FAULTS)}
