"""Verdicts of a comparison. A measure is `outside` when the whole interval of its change lies beyond the tolerance, `inside`
when the whole interval lies within it, and `unclear` when the interval holds the tolerance: then the recordings are too short
to tell. Only what got worse can be outside.

The intervals hold together: with m measures each has level 1 - (1 - confidence) / m (Bonferroni), so a comparison of equal
recordings with many pools does not fail by the number of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec
import numpy as np

from schemas.batch import LATENCY_SLIS
from schemas.errors import ConfigError
from schemas.policy import PoolPolicy
from schemas.policy_faults import did_you_mean
from streams.compare.intervals import Interval
from streams.compare.measure import Latency, Share, latency, share
from streams.compare.recording import Recording

__all__ = ["TOLERANCES", "Comparison", "Measure", "PoolComparison", "compare", "parse_tolerances"]

Judged = Literal["outside", "inside", "unclear"]

TOLERANCES = {"p50": 0.05, "p95": 0.05, "p99": 0.10, "error_ratio": 0.005, "empty_ratio": 0.005, "slo": 0.005}
"""How much worse B may be: latencies as a ratio to A's (0.05 is 5 % slower), shares as a difference (0.005 is half a percent of
the requests)."""
_NAMES = ("p50", "p95", "p99")


class Measure(msgspec.Struct, kw_only=True):
    """One row. `unit` says what `change` is: `ratio` of A's latency (0.05: 5 % slower), or a difference of `share`s. Bounds that
    are not known are null.
    """

    measure: str
    unit: Literal["ratio", "share"]
    a: float
    a_low: float | None
    a_high: float | None
    b: float
    b_low: float | None
    b_high: float | None
    change: float
    change_low: float | None
    change_high: float | None
    service: float | None = None
    """What of the change is not explained by another workload; for latencies."""
    service_low: float | None = None
    service_high: float | None = None
    workload: float | None = None
    """What of it is; (1 + service) * (1 + workload) = 1 + change."""
    uncovered_ratio: float | None = None
    tolerance: float
    verdict: Judged


class PoolComparison(msgspec.Struct, kw_only=True):
    """All measures of a pool."""

    pool: str
    pool_b: str
    requests_a: int
    requests_b: int
    span_a_s: float
    span_b_s: float
    measures: list[Measure]


class Comparison(msgspec.Struct, tag_field="kind", tag="comparison", kw_only=True):
    """Result of `slodrift compare`."""

    a: str
    b: str
    judged_by: Literal["change", "service"]
    confidence: float
    verdict: Judged
    pools: list[PoolComparison]
    only_a: list[str] = []
    only_b: list[str] = []


def parse_tolerances(texts: Iterable[str]) -> dict[str, float]:
    """Tolerances of `NAME=VALUE,...` texts over the defaults; a name is one of `TOLERANCES`, or `ttft_s.p95` for one latency and
    `slo.ttft_s` for one objective.

    Raises:
        ConfigError: A name is unknown, or a value is no number from 0 on.
    """
    known = [*TOLERANCES, *(f"{sli}.{q}" for sli in LATENCY_SLIS for q in _NAMES), *(f"slo.{sli}" for sli in LATENCY_SLIS)]
    out = dict(TOLERANCES)
    for entry in (part.strip() for text in texts for part in text.split(",")):
        name, sign, value = entry.partition("=")
        if not sign or name not in known:
            raise ConfigError(f"--tolerance {entry!r}: write NAME=VALUE, {did_you_mean(name, known)}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            hint = " (5 % is 0.05)" if "%" in value else ""
            raise ConfigError(f"--tolerance {entry!r}: {value!r} is no number from 0 on{hint}")
        out[name] = number
    return out


def compare(
    a: Mapping[str, Recording], b: Mapping[str, Recording], policy_of: Callable[[str], PoolPolicy], *, names: tuple[str, str],
    tolerances: Mapping[str, float], confidence: float, by_service: bool, rng: np.random.Generator,
) -> Comparison:  # fmt: skip
    """Compare recordings pool by pool; two recordings of one pool each are compared whatever its name.

    Raises:
        ConfigError: They have no pool in common.
    """
    pairs = [(pool, pool) for pool in a if pool in b]
    if not pairs and len(a) == len(b) == 1:
        pairs = [(next(iter(a)), next(iter(b)))]
    if not pairs:
        raise ConfigError(f"{names[0]} has {_listed(a)}, {names[1]} has {_listed(b)}: no pool to compare")
    rows = sum(_rows_of(a[p], policy_of(p)) for p, _ in pairs)
    alpha = (1 - confidence) / max(rows, 1)
    pools = [
        PoolComparison(
            pool=p, pool_b=q, requests_a=len(a[p]), requests_b=len(b[q]), span_a_s=round(a[p].span_s, 3),
            span_b_s=round(b[q].span_s, 3), measures=_measures(a[p], b[q], policy_of(p), tolerances, alpha, by_service, rng),
        )
        for p, q in pairs
    ]  # fmt: skip
    verdicts = {m.verdict for pool in pools for m in pool.measures}
    return Comparison(
        a=names[0], b=names[1], judged_by="service" if by_service else "change", confidence=confidence,
        verdict="outside" if "outside" in verdicts else "unclear" if "unclear" in verdicts else "inside", pools=pools,
        only_a=[p for p in a if p not in {x for x, _ in pairs}], only_b=[p for p in b if p not in {y for _, y in pairs}],
    )  # fmt: skip


def _listed(pools: Mapping[str, Recording]) -> str:
    return f"the pool{'s' * (len(pools) > 1)} {', '.join(pools)}" if pools else "no requests"


def _rows_of(recording: Recording, policy: PoolPolicy) -> int:
    return len(_NAMES) * int(np.isfinite(recording.latency_s).any(axis=1).sum()) + 2 + len(policy.slo)


def _measures(
    a: Recording, b: Recording, policy: PoolPolicy, tolerances: Mapping[str, float], alpha: float, by_service: bool,
    rng: np.random.Generator,
) -> list[Measure]:  # fmt: skip
    out = []
    for sli, name in enumerate(LATENCY_SLIS):
        for q, found in zip(_NAMES, latency(a, b, sli, alpha, rng) or (), strict=False):
            tolerance = tolerances.get(f"{name}.{q}", tolerances[q])
            out.append(_latency_row(f"{name}.{q}", found, tolerance, by_service))
    for name in ("error_ratio", "empty_ratio"):
        sides = [(r, r.ok | r.against, r.against if name == "error_ratio" else r.empty) for r in (a, b)]
        if (ratio := share(sides[0], sides[1], alpha, rng)) is not None:
            out.append(_share_row(name, ratio, tolerances[name]))
    for name, slo in sorted(policy.slo.items()):
        sides = []
        for r in (a, b):
            seconds = r.latency_s[LATENCY_SLIS.index(name)]
            sides.append((r, np.isfinite(seconds) | r.against, r.against | (seconds > np.float32(slo.threshold))))
        if (missed := share(sides[0], sides[1], alpha, rng)) is not None:
            tolerance = tolerances.get(f"slo.{name}", tolerances["slo"])
            out.append(_share_row(f"slo.{name}", missed, tolerance, attained=True))
    return out


def _judged(moved: Interval, tolerance: float) -> Judged:
    if moved.low > tolerance:
        return "outside"
    return "inside" if moved.high <= tolerance else "unclear"


def _latency_row(name: str, found: Latency, tolerance: float, by_service: bool) -> Measure:
    judged = found.service if by_service else found.change
    known = math.isfinite(found.service.value)
    return Measure(
        measure=name, unit="ratio", a=_digits(found.a.value), a_low=_bound(found.a.low), a_high=_bound(found.a.high),
        b=_digits(found.b.value), b_low=_bound(found.b.low), b_high=_bound(found.b.high),
        change=_digits(math.expm1(found.change.value)), change_low=_ratio(found.change.low),
        change_high=_ratio(found.change.high),
        service=_ratio(found.service.value), service_low=_ratio(found.service.low), service_high=_ratio(found.service.high),
        workload=_ratio(found.change.value - found.service.value) if known else None,
        uncovered_ratio=round(found.uncovered_ratio, 6), tolerance=tolerance, verdict=_judged(judged, math.log1p(tolerance)),
    )  # fmt: skip


def _share_row(name: str, found: Share, tolerance: float, *, attained: bool = False) -> Measure:
    """`found` is of bad requests; with `attained` the row is about the good ones, and its change is a loss of them."""
    a, b, moved = found.a, found.b, found.change
    verdict = _judged(moved, tolerance)
    if attained:
        a, b = (Interval(1 - end.value, 1 - end.high, 1 - end.low) for end in (a, b))
        moved = Interval(-moved.value, -moved.high, -moved.low)
    return Measure(
        measure=name, unit="share", a=_digits(a.value), a_low=_bound(a.low), a_high=_bound(a.high), b=_digits(b.value),
        b_low=_bound(b.low), b_high=_bound(b.high), change=_digits(moved.value), change_low=_bound(moved.low),
        change_high=_bound(moved.high), tolerance=tolerance, verdict=verdict,
    )  # fmt: skip


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _bound(value: float) -> float | None:
    return _digits(value) if math.isfinite(value) else None


def _ratio(log_ratio: float) -> float | None:
    """Ratio less 1 of a logarithm; nothing below minus one, nothing above infinity."""
    return _digits(math.expm1(log_ratio)) if math.isfinite(log_ratio) and log_ratio < 700 else None
