"""Speeds of the core beside those of peers, as pytest-benchmark cases: `slodrift bench short` runs them and makes a table.

    pytest bench/short_cases.py --benchmark-timer=time.process_time

Not part of the test suite. Each case says how many samples (or events, calls) one round handles; CPU time is measured, and the
fastest round counts: other work on the machine can only add. All sketches get the same values.
"""

from __future__ import annotations

import json
from typing import Any

import datasketches
import numpy as np
import pytest
from ddsketch import DDSketch
from river import anomaly, drift
from slodrift_client import BreakerClient

from bench.scale_case import Size, judged
from detectors import histogram
from streams.framer_cut import cut_frames
from streams.framing import EventFramer

SERIES, SAMPLES = 30_000, 1_000_000
FRAMES, FRAME_ROWS = 60, 500


def values(n: int) -> np.ndarray:
    return np.random.default_rng(0).lognormal(-2.0, 0.5, n).astype(np.float32)


def timed(benchmark: Any, units: int, what: str, function: Any, rounds: int = 5, setup: Any = None) -> None:
    benchmark.extra_info.update(units=units, what=what)
    benchmark.pedantic(function, setup=setup, rounds=rounds, iterations=1, warmup_rounds=1)


@pytest.mark.parametrize("order", ["grouped", "random"])
def test_histogram(benchmark: Any, order: str) -> None:
    fine = np.zeros((SERIES, histogram.BUCKETS), np.uint16)
    series = np.random.default_rng(1).integers(0, SERIES, SAMPLES)
    where, samples = (np.sort(series) if order == "grouped" else series), values(SAMPLES)

    def add() -> None:
        fine[:] = 0 if fine[0].max() > 60_000 else fine
        histogram.add(fine, where, samples)

    timed(benchmark, SAMPLES, f"slodrift histograms, {SERIES:,} series, {order}", add)


def test_river_adwin(benchmark: Any) -> None:
    detector, some = drift.ADWIN(), values(30_000).tolist()
    timed(benchmark, len(some), "river ADWIN", lambda: [detector.update(v) for v in some], 3)


def test_river_page_hinkley(benchmark: Any) -> None:
    detector, some = drift.PageHinkley(), values(50_000).tolist()
    timed(benchmark, len(some), "river PageHinkley", lambda: [detector.update(v) for v in some], 3)


def test_river_kswin(benchmark: Any) -> None:
    detector, some = drift.KSWIN(seed=1), values(1000).tolist()
    timed(benchmark, len(some), "river KSWIN", lambda: [detector.update(v) for v in some], 3)


def test_river_half_space_trees(benchmark: Any) -> None:
    trees, some = anomaly.HalfSpaceTrees(seed=1), values(1000).tolist()
    timed(benchmark, len(some), "river HalfSpaceTrees", lambda: [trees.learn_one({"x": v}) for v in some], 3)


def test_ddsketch(benchmark: Any) -> None:
    sketch, some = DDSketch(0.0154), values(50_000).tolist()
    timed(benchmark, len(some), "ddsketch (Python), 1.54 %", lambda: [sketch.add(v) for v in some], 3)


def test_datasketches_kll(benchmark: Any) -> None:
    sketch, some = datasketches.kll_floats_sketch(200), values(SAMPLES)
    timed(benchmark, len(some), "datasketches KLL (C++), one series, k = 200", lambda: sketch.update(some), 3)


def test_allow(benchmark: Any) -> None:
    client = BreakerClient.offline({"bad": "OPEN"})
    allow = client.allow

    def calls() -> None:
        for _ in range(100_000):
            allow("gpu-017")

    timed(benchmark, 100_000, "slodrift-client allow(), with its loop", calls)


def test_framer(benchmark: Any) -> None:
    rng = np.random.default_rng(0)
    raw = [
        json.dumps(
            {
                "kind": "request", "ts": 1_796_000_000 + i / 5000, "pool": "chat-70b/eu/h100", "node": f"gpu-{i % 64:03d}",
                "request_id": f"r{i}", "tenant": f"t{i % 4}", "prompt_tokens": int(rng.integers(1, 4000)), "output_tokens": 120,
                "queue_s": 0.004, "ttft_s": float(rng.random()), "tpot_s": 0.018, "e2e_s": 2.4, "outcome": "ok", "batch_size": 14,
            }
        ).encode()
        for i in range(20_000)
    ]  # fmt: skip

    def frame(framer: EventFramer) -> None:
        for start in range(0, len(raw), 5000):
            for _ in cut_frames(framer.feed(raw[start : start + 5000]), "telemetry.requests", 0):
                pass

    timed(benchmark, len(raw), "framer, JSON events to frames", frame, 4, lambda: ((EventFramer(),), {}))


def test_judge(benchmark: Any) -> None:
    turn = judged(Size(FRAMES, requests=FRAME_ROWS), 0)
    timed(benchmark, FRAMES * FRAME_ROWS, f"judge, frames of {FRAME_ROWS} requests, decode to windows, all detection", turn, 12)
