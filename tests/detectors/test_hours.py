"""Hour-of-day part of a baseline: found where there is a rhythm, left alone where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from detectors import hours
from detectors.bank import SeriesBank
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection

BLOCK_S = 300.0
PER_DAY = 288
ROWS = 9  # the pool and 8 nodes
NOISE = 0.01**2


def season(block: int, amplitude: float) -> float:
    return amplitude * np.sin(2 * np.pi * (block + 0.5) / PER_DAY + 1)


def lived(days: float, amplitude: float, wobble: float, awake=lambda block: True, seed: int = 0):
    """A table after some days, and how far off the rhythm what was applied is in the last one, rms nats of each series."""
    rng = np.random.default_rng(seed)
    table = hours.begin(ROWS, 1)
    off = np.zeros((4, ROWS))
    for block in range(int(days * PER_DAY)):
        truth = season(block, amplitude)
        hours.follow(table, (block + 0.5) * BLOCK_S, BLOCK_S, np.full((4, ROWS), wobble))
        if block >= (days - 1) * PER_DAY:
            off += np.square(hours.now_nats(table) - truth) / PER_DAY
        seen = np.full((4, ROWS), awake(block))
        deviation = truth + wobble * rng.standard_normal((4, ROWS))
        hours.learn(table, (block + 0.5) * BLOCK_S, BLOCK_S, deviation, np.full((4, ROWS), NOISE), seen)
    return table, np.sqrt(off[:, 1:])


def test_a_rhythm_is_taken_off_after_two_days():
    table, off = lived(4, 0.25, 0.05)
    assert off.max() < 0.05
    assert not hours.now_nats(table)[:, 0].any()  # the pool is made of its nodes' requests


def test_nothing_is_taken_off_before_two_days():
    table, _ = lived(2, 0.25, 0.05)
    assert not hours.now_nats(table).any()
    assert not hours.variance(table).any()


@pytest.mark.parametrize("wobble", [0.05, 0.15])
def test_without_a_rhythm_hardly_anything_is_taken_off(wobble):
    _, off = lived(5, 0.0, wobble)
    assert np.median(off) < 0.05 * wobble
    assert off.max() < 0.3 * wobble


def test_an_hour_that_was_never_seen_keeps_the_day_and_says_how_unsure_that_is():
    table, _ = lived(4, 0.25, 0.05, awake=lambda block: block % PER_DAY >= 36)  # silent for three hours after midnight
    place, error, between = hours.estimate(table, np.full((4, ROWS), 0.05))
    assert np.abs(place[:, 1:, :3]).max() < 0.01
    assert error[:, 1:, :3] == pytest.approx(np.broadcast_to(between[:, 1:, None], (4, ROWS - 1, 3)), rel=0.01)
    assert error[:, 1:, 4:].max() < 0.1 * error[:, 1:, :3].min()


def test_it_moves_slowly():
    table = hours.begin(2, 1)
    rng = np.random.default_rng(1)
    for block in range(3 * PER_DAY):
        before = hours.now_nats(table).copy()
        hours.follow(table, (block + 0.5) * BLOCK_S, BLOCK_S, np.full((4, 2), 0.05))
        assert np.abs(hours.now_nats(table) - before).max() <= 0.05 + 1e-6
        step = 1.0 if block % PER_DAY >= PER_DAY // 2 else 0.0
        hours.learn(table, (block + 0.5) * BLOCK_S, BLOCK_S, step + 0.05 * rng.standard_normal((4, 2)), np.full((4, 2), NOISE),
                    np.ones((4, 2), bool))  # fmt: skip


def bank_of(**settings) -> SeriesBank:
    bank = SeriesBank(Detection(period_s=600.0, lag_s=600.0, **settings), BLOCK_S, open_slots=2)
    for _ in range(2):
        bank.add_node()
    return bank


def drive(bank: SeriesBank, slots: range, seed: int = 0):
    rng = np.random.default_rng([seed, slots.start])
    node, unknown, none = np.repeat(np.arange(2, dtype=np.uint32), 20), np.full(40, UNKNOWN_TOKENS), np.zeros(40, np.uint32)
    for slot in slots:
        logs = -2 + 0.3 * np.sin(2 * np.pi * slot / PER_DAY) + 0.3 * rng.standard_normal((4, 40))
        bank.ingest(slot, node, np.exp(logs).astype(np.float32), unknown, unknown, none)
        tick = bank.close(slot, np.zeros(2, np.bool_))
    return tick


def test_a_bank_takes_it_off_and_its_state_survives_a_restart():
    bank = bank_of()
    drive(bank, range(3 * PER_DAY))
    assert np.abs(hours.now_nats(bank._state.hour)[:, 1:3]).max() > 0.01
    other = SeriesBank.restore(bank.state(), bank.detection)
    more = range(3 * PER_DAY, 3 * PER_DAY + 30)
    ours, theirs = drive(bank, more), drive(other, more)
    assert np.array_equal(ours.log_evidence, theirs.log_evidence)
    assert np.array_equal(ours.shift_nats, theirs.shift_nats)
    assert bank.state() == other.state()


def test_the_policy_can_turn_it_off():
    bank = bank_of(hour_of_day=False)
    drive(bank, range(3 * PER_DAY))
    assert bank._state.hour.size == 0
    assert not bank._derived.band.max() < 0.3  # the rhythm is taken for wobble


def test_nodes_that_come_and_go_while_hours_are_kept():
    bank = bank_of()
    drive(bank, range(3 * PER_DAY))
    known = bank._state.hour[:, 1:3].copy()
    for _ in range(20):
        bank.add_node()
    assert np.array_equal(bank._state.hour[:, 1:3], known)
    gone = np.zeros(22, np.bool_)
    gone[0] = True
    bank.rebase(gone)
    assert not bank._state.hour[:, 1].any()  # what is normal is another thing now, by day and by hour
    assert np.array_equal(bank._state.hour[:, 2], known[:, 1])
