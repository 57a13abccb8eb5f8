"""The soak and the visibility in short; the whole table is `make faults`."""

from __future__ import annotations

import pytest

from bench.faults.kills import soak
from bench.faults.visibility import measure

pytestmark = [pytest.mark.embedded, pytest.mark.slow]


@pytest.mark.timeout(300)
def test_six_kills_under_load_leave_the_archive_equal_to_a_recomputation() -> None:
    total = soak(6)
    assert total["kills"] == 6
    assert total["rows"] > 1000
    assert total["decisions"] > 0


@pytest.mark.timeout(300)
def test_decisions_are_visible_on_fifty_hosts_within_seconds_and_through_a_restart_of_redis() -> None:
    undisturbed, through_restart, _ = measure(n_pools=2)
    assert undisturbed.hosts == 50
    assert undisturbed.decisions >= 4
    assert undisturbed.within(2.0) >= 0.99
    assert undisturbed.within(5.0) == 1.0
    assert through_restart.within(10.0) == 1.0
