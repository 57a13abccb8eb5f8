"""E, the detector's part: what a sample and a tick cost on one core, beside river on the same machine.

Pin it to a core: ``taskset -c 1 slodrift bench speed`` (commands use one BLAS thread). CPU time is measured, so that other work
on the machine disturbs less.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from river import drift as river_drift
from scipy.stats import entropy

from bench.report import Report
from detectors import drift, histogram, hours
from detectors.bank import SeriesBank
from detectors.ranks import BINS, nominal
from detectors.weigh import weigh
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection

__all__ = ["run"]

_SLIS = 4


def _best_s(action: Callable[[], object], times: int) -> float:
    """Least CPU seconds of several runs."""
    best = np.inf
    for _ in range(times):
        start = time.process_time()
        action()
        best = min(best, time.process_time() - start)
    return best


def _bank(nodes: int, rng: np.random.Generator) -> tuple[SeriesBank, Callable[[], object]]:
    """A bank that has learned, and what closes its next tick of 10 requests a node."""
    bank = SeriesBank(Detection(learning_s=60.0, learning_samples=60), 5.0, open_slots=2)
    for _ in range(nodes):
        bank.add_node()
    node = np.repeat(np.arange(nodes, dtype=np.uint32), 10)
    n = len(node)
    latency = np.exp(rng.standard_normal((_SLIS, n), dtype=np.float32) * np.float32(0.3) - np.float32(2))
    prompt = rng.lognormal(6.3, 0.7, n).astype(np.uint32)
    unknown, none, hold = np.full(n, UNKNOWN_TOKENS), np.zeros(n, np.uint32), np.zeros(nodes, np.bool_)
    slot = 0

    def tick() -> object:
        nonlocal slot
        bank.ingest(slot, node, latency[:, rng.permutation(n)], prompt, unknown, none)
        slot += 1
        return bank.close(slot - 1, hold)

    for _ in range(30):
        tick()
    return bank, tick


def _judge_s(bank: SeriesBank, rng: np.random.Generator, times: int) -> float:
    """CPU seconds of drift (KL of every window) and evidence of one tick of all series."""
    state, derived = bank._state, bank._derived
    m = bank.n_nodes + 1
    counts = rng.multinomial(10, nominal(), (_SLIS, m)).astype(np.float32)
    n = counts.sum(axis=-1)
    weight = bank.model.weights(state.base_mix[0])

    def judge() -> None:
        weigh(state, derived, bank.detection, 14.4, counts, n, weight)
        window = state.blocks[0, :, :m]
        drift.kl_of_window(window, window @ np.ones(BINS, np.float32), derived.log_base[:, :m])

    return _best_s(judge, times)


def run(seed: int, *, quick: bool = False) -> Report:
    """Run the benchmark; `quick` leaves out 100,000 series."""
    rng = np.random.default_rng(seed)
    times = 5 if quick else 15
    report = Report("speed", "E. Speed of the detector, one core, CPU time", ("what", "value", "unit"), seed)
    series, samples = 30_000, 3_000_000
    fine = np.zeros((series, histogram.BUCKETS), np.uint16)
    values = rng.lognormal(-2, 0.5, samples).astype(np.float32)
    random = rng.integers(0, series, samples)
    rates = {}
    for name, where in (("random order", random), ("grouped by series", np.sort(random))):

        def ingest(where: np.ndarray = where) -> None:
            histogram.add(fine, where, values)
            fine[:] = 0 if fine[0].max() > 60_000 else fine

        rates[name] = samples / _best_s(lambda i=ingest: i(), 3) / 1e6
        report.add(f"histogram ingest, {series:,} series, {name}", rates[name], "M samples/s")
    report.bar(f"ingest {rates['random order']:.0f} M/s random >= 30, {rates['grouped by series']:.0f} M/s grouped >= 100",
               rates["random order"] >= 30 and rates["grouped by series"] >= 100)  # fmt: skip
    adwin, kswin = river_drift.ADWIN(), river_drift.KSWIN(seed=1)
    some = values[:200_000].tolist()
    per = {
        "river ADWIN": _best_s(lambda: [adwin.update(v) for v in some], 1) / len(some),
        "river KSWIN": _best_s(lambda: [kswin.update(v) for v in some[:1500]], 1) / 1500,
    }
    ours = 1e-6 / rates["grouped by series"]  # frames hold the requests of one node each
    for name, seconds in per.items():
        report.add(f"{name}, a sample", seconds * 1e9, "ns")
        report.add("  times as long as histogram ingest, grouped", seconds / ours, "")
        report.add("  times as long as histogram ingest, random", seconds * rates["random order"] * 1e6, "")
    report.bar("20x ADWIN and 10,000x KSWIN a sample", per["river ADWIN"] >= 20 * ours and per["river KSWIN"] >= 10_000 * ours)
    sizes = {30_000: 12.0} if quick else {30_000: 12.0, 100_000: 45.0}
    for count, limit in sizes.items():
        bank, tick = _bank(count // _SLIS, rng)
        judged = _judge_s(bank, rng, times) * 1e3
        report.add(f"tick, {count:,} series: drift and evidence", judged, "ms")
        report.bar(f"tick of {count:,} series {judged:.1f} ms <= {limit:g} ms", judged <= limit)
        whole = _best_s(tick, times) * 1e3
        report.add("  whole tick with 10 requests a node: ingest, judge, learn, report", whole, "ms")
        if count == 30_000:
            rows = bank._state.fine.reshape(-1, histogram.BUCKETS)[:count]
            quantiles = judged + _best_s(lambda r=rows: histogram.quantiles(r, (0.5, 0.99, 0.999)), 3) * 1e3
            report.add("  drift, evidence and three quantiles", quantiles, "ms")
            report.bar(f"with three quantiles {quantiles:.1f} ms <= 40 ms", quantiles <= 40)
            state, a_series = bank._state, 1024 * bank._state.rows * _SLIS
            young = (state.nbytes + bank._derived.nbytes) / a_series
            kb = young + hours.begin(state.rows, len(state.blocks)).nbytes / a_series
            report.add("  memory of state, a series, in its first hour", young, "KiB")
            report.add("  the same with hours of the day, from then on", kb, "KiB")
            report.bar(f"memory {kb:.2f} KiB a series <= 3", kb <= 3)
    counts = rng.poisson(20, (200, BINS)).astype(np.float32)
    base = rng.poisson(400, (200, BINS)).astype(np.float32)
    fast = drift.kl_of_window(counts, counts.sum(axis=1), drift.log_smoothed(base))
    worst = float(np.abs(fast - entropy(counts + 0.5, base + 0.5, axis=1)).max())
    report.add("KL, largest difference from scipy", f"{worst:.1e}", "nats")
    report.bar(f"KL within {worst:.1e} <= 1e-4 of scipy.stats.entropy", worst <= 1e-4)
    return report
