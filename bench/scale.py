"""Growth: the judge's CPU time, memory, rows and bytes against nodes, SLIs, strata, pools and frames, fitted and checked.

    slodrift bench scale [--write FILE] [--check]

The form is in `streams/plan/model.py`: every quantity is a sum of non-negative coefficients times counts. The fit minimises
relative errors, so that small sizes count as much as large ones; what it misses of its own measurements is printed. `--write`
makes the calibration that `slodrift plan` reads. `--check` measures three sizes that no fit has seen, and compares. CPU is
compared in yardsticks (`bench/yardstick.py`): how fast a shared machine is changes between two runs.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import nnls

from bench.report import Report, machine
from bench.scale_case import Size, measure
from bench.scale_live import Live, counts_of, measure_live
from streams.plan.model import Calibration, load_calibration

__all__ = ["FORMS", "fit", "run"]

FIT = (
    Size(20, requests=20), Size(200, requests=20), Size(400, requests=10), Size(100, requests=100),
    Size(100, requests=100, split=4), Size(10, pools=16, requests=20), Size(40, pools=4, requests=50),
    Size(100, requests=50, slis=1), Size(100, requests=50, slis=2), Size(50, pools=2, requests=60, adapters=8),
    Size(60, requests=300), Size(50, pools=3, requests=100, split=2), Size(250, requests=40),
    Size(30, pools=6, requests=60, split=2), Size(80, pools=2, requests=100, slis=3, adapters=4),
)  # fmt: skip
CHECK = (Size(300, requests=30), Size(24, pools=8, requests=70, split=2), Size(70, pools=2, requests=120, slis=3, adapters=4))
LIVE_FIT = (Size(25, pools=8, requests=40), Size(100, pools=2, requests=40))
LIVE_CHECK = Size(60, pools=4, requests=30)

FORMS: dict[str, tuple[str, ...]] = {
    "cpu_s": ("frames", "requests", "samples", "pool_ticks", "node_ticks"),
    "memory_bytes": ("nodes", "pools", "requests"),
    "snapshot_bytes": ("nodes", "pools", "requests"),
    "frame_bytes": ("frames", "requests", "samples"),
    "window_bytes": ("pool_ticks", "window_rows"),
    "window_rows": ("window_rows",),
    "stored_rows": ("pool_ticks", "window_rows"),
    "archive_s": ("pool_ticks", "window_rows"),
}
"""Quantity to the counts that it grows with."""
LIMIT = 0.20


def fit(quantity: str, sizes: tuple[Size, ...], measured: list[dict[str, float]]) -> tuple[dict[str, float], float]:
    """(coefficient by count, largest relative residual)."""
    names = FORMS[quantity]
    counts = [counts_of(size) for size in sizes]
    values = np.array([row[quantity] for row in measured])
    design = np.array([[getattr(c, name) for name in names] for c in counts])
    scale = design.max(axis=0)
    solution, _ = nnls(design / scale / values[:, None], np.ones(len(values)))
    coefficients = solution / scale
    residual = float(np.abs(design @ coefficients / values - 1.0).max())
    return dict(zip(names, coefficients.tolist(), strict=True)), residual


def run(seed: int, *, quick: bool = False, write: Path | None = None, check: bool | None = None) -> Report:
    """Fit, unless `check` is wanted of the calibration that is shipped (or in `write`)."""
    if check:
        return _check(seed, load_calibration(write))
    report = Report("scale", "What the judge costs, coefficients", ("quantity", *FORMS["cpu_s"], *_REST, "worst residual"), seed)
    sizes = FIT[::2] if quick else FIT
    measured = [measure(size, seed) for size in sizes]
    calibration = calibrate(sizes, measured, seed)
    for quantity, factors in calibration.coefficients.items():
        cells = [f"{factors[name]:.3g}" if name in factors else "" for name in (*FORMS["cpu_s"], *_REST)]
        report.add(quantity, *cells, f"{100 * calibration.residual_ratio[quantity]:.0f} %")
    report.notes.append(
        f"a live worker adds {1e6 * calibration.live_frame_s:.0f} us of CPU a frame and "
        f"{1e3 * calibration.live_pool_tick_s:.1f} ms a tick of a pool, and has "
        f"{calibration.live_base_bytes / 1e6:.0f} MB beside its pools"
    )
    report.notes.append(
        "all a second of event time: CPU seconds, frames, requests, samples, ticks, rows; nodes and pools at a time"
    )
    if write is not None:
        write.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
        report.notes.append(f"written to {write}")
    return report


_REST: tuple[str, ...] = ("window_rows", "nodes", "pools")


def calibrate(sizes: tuple[Size, ...], measured: list[dict[str, float]], seed: int) -> Calibration:
    """The fit of all quantities, and what a live worker adds."""
    yard_s = median(row["yardstick_s"] for row in measured)
    fits = {quantity: fit(quantity, sizes, [in_seconds(row, yard_s) for row in measured]) for quantity in FORMS}
    facts = machine()
    calibration = Calibration(
        machine=facts["machine"], versions=facts["versions"], date=facts["date"],
        coefficients={quantity: factors for quantity, (factors, _) in fits.items()},
        residual_ratio={quantity: residual for quantity, (_, residual) in fits.items()}, yardstick_s=yard_s,
    )  # fmt: skip
    add_live(calibration, [measure_live(size, seed) for size in LIVE_FIT])
    return calibration


def in_seconds(row: dict[str, float], yard_s: float) -> dict[str, float]:
    """A row of `measure` with its CPU in seconds of a machine whose yardstick takes `yard_s`."""
    return row | {"cpu_s": row["cpu_yards"] * yard_s, "archive_s": row["archive_yards"] * yard_s}


def add_live(calibration: Calibration, runs: list[Live]) -> None:
    """What the live runs of `LIVE_FIT` needed beyond the judge: CPU a frame and a tick of a pool, memory, Redis calls."""
    counts = [counts_of(size) for size in LIVE_FIT]
    spans_s = [run.frames / c.frames for run, c in zip(runs, counts, strict=True)]
    alone_s = [calibration.predict("cpu_s", c) * span_s for c, span_s in zip(counts, spans_s, strict=True)]
    yard_s = calibration.yardstick_s
    design = np.array([[c.frames * span_s, c.pool_ticks * span_s] for c, span_s in zip(counts, spans_s, strict=True)])
    beyond_s = np.array(
        [max(0.0, run.cpu_s * yard_s / run.yardstick_s - alone) for run, alone in zip(runs, alone_s, strict=True)]
    )
    scale = design.max(axis=0)
    frame_s, pool_tick_s = (nnls(design / scale, beyond_s)[0] / scale).tolist()
    calibration.live_frame_s, calibration.live_pool_tick_s = frame_s, pool_tick_s
    resident = [run.rss_bytes - calibration.predict("memory_bytes", c) for run, c in zip(runs, counts, strict=True)]
    calibration.live_base_bytes = float(np.mean(resident))
    calibration.redis_per_pool_s = float(np.mean([run.redis_per_pool_s for run in runs]))


def _check(seed: int, calibration: Calibration) -> Report:
    report = Report("scale check", "Predicted against measured, sizes that the fit has not seen",
                    ("size", "quantity", "predicted", "measured", "off"), seed)  # fmt: skip
    yard_s = calibration.yardstick_s
    for size in CHECK:
        row = in_seconds(measure(size, seed + 1), yard_s)
        for quantity in FORMS:
            _compare(report, _words(size), quantity, calibration.predict(quantity, counts_of(size)), row[quantity])
    live, counts = measure_live(LIVE_CHECK, seed + 1), counts_of(LIVE_CHECK)
    expected_s = calibration.live_cpu_s(counts) * live.frames / counts.frames
    words = f"live worker, {_words(LIVE_CHECK)}"
    _compare(report, words, "cpu_s of all frames", expected_s, live.cpu_s * yard_s / live.yardstick_s)
    _compare(
        report, words, "resident bytes", calibration.live_base_bytes + calibration.predict("memory_bytes", counts), live.rss_bytes
    )
    _compare(report, words, "Redis calls a second", calibration.redis_per_pool_s * LIVE_CHECK.pools,
             live.redis_per_pool_s * LIVE_CHECK.pools)  # fmt: skip
    report.notes.append(
        f"calibration of {calibration.date}, {calibration.machine}; CPU in seconds of that machine, whose yardstick took "
        f"{1e3 * yard_s:.1f} ms; here it took {1e3 * live.yardstick_s:.1f} ms at the end"
    )
    return report


def _compare(report: Report, size: str, quantity: str, predicted: float, measured: float) -> None:
    off = predicted / measured - 1.0
    report.add(size, quantity, f"{predicted:.4g}", f"{measured:.4g}", f"{100 * off:+.0f} %")
    report.bar(f"{size}, {quantity}: within {100 * LIMIT:.0f} %", abs(off) <= LIMIT)


def _words(size: Size) -> str:
    parts: dict[str, Any] = {"pools": size.pools, "nodes": size.nodes, "requests a tick": size.requests, "SLIs": size.slis,
                             "adapters": size.adapters, "frames a tick": size.split}  # fmt: skip
    return ", ".join(f"{value} {name}" for name, value in parts.items() if value)
