"""How far a window is from its baseline: Kullback-Leibler divergence, and its split into workload and service.

KL(current || baseline) of finite samples is biased upwards by (cells - 1) / 2 * (1/n + 1/n0) (Wilks 1938; Miller 1955); the
*plain* value is never negative, the *corrected* one has the bias taken off and is what people are shown. By the chain rule
KL(stratum, latency) = KL(stratum) + E[KL(latency | stratum)]: the first term is a workload shift, the second a change of
service (Cover and Thomas, Elements of Information Theory, 2.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Decomposed", "bias_nats", "chain_rule", "kl_nats", "kl_of_window", "log_smoothed", "smallest_n"]

_HALF = 0.5


def _distribution(counts: NDArray[Any], add: float) -> NDArray[np.float64]:
    values: NDArray[np.float64] = counts.astype(np.float64) + add
    total = values.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.full_like(values, 1 / values.shape[-1]), where=total > 0))


def kl_nats(current: NDArray[Any], baseline: NDArray[Any], *, add: float = _HALF) -> NDArray[np.float64]:
    """Plain KL(current || baseline) over the last axis, nats, (...); finite and >= 0 for any counts, 0 for equal ones.

    Args:
        current: Counts (..., K).
        baseline: Counts that broadcast against them.
        add: Smoothing, a pseudo-count in every cell (Krichevsky and Trofimov's one half).

    >>> import numpy as np
    >>> float(kl_nats(np.array([90, 10]), np.array([50, 50])).round(3))
    0.359
    """
    p, q = _distribution(current, add), _distribution(baseline, add)
    q = np.maximum(q, 1e-300)
    ratio = np.log(np.where(p > 0, p, 1.0)) - np.log(q)
    total: NDArray[np.float64] = np.maximum((p * np.where(p > 0, ratio, 0.0)).sum(axis=-1), 0.0)
    return total


def log_smoothed(counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log of the distribution of counts with one half added in every cell, float32 (..., K): a baseline for `kl_of_window`."""
    smoothed = counts + np.float32(_HALF)
    smoothed /= smoothed.sum(axis=-1, keepdims=True)
    return np.asarray(np.log(smoothed, out=smoothed), np.float32)


def kl_of_window(current: NDArray[np.float32], n: NDArray[np.float32], log_baseline: NDArray[np.float32]) -> NDArray[np.float32]:
    """`kl_nats` of many windows in float32, to within 1e-4 nats.

    Args:
        current: Counts (..., K).
        n: Their sums (...).
        log_baseline: From `log_smoothed`, (..., K).
    """
    smoothed = current + np.float32(_HALF)
    total = n + np.float32(_HALF * current.shape[-1])
    ratio = np.log(smoothed)
    ratio -= log_baseline
    out = np.einsum("...k,...k->...", smoothed, ratio)
    out = out / total - np.log(total)
    return np.asarray(np.maximum(out, np.float32(0)))


def bias_nats(cells: int, n: NDArray[Any], n_baseline: NDArray[Any]) -> NDArray[np.float64]:
    """Expected plain KL of two samples of the same distribution with `cells` cells; 0 where either is empty."""
    here, there = np.asarray(n, np.float64), np.asarray(n_baseline, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        bias = (cells - 1) / 2 * (1 / here + 1 / there)
    return np.where((here > 0) & (there > 0), bias, 0.0)


def smallest_n(cells: int, threshold_nats: float, probability: float, baseline_ratio: float = 20.0) -> int:
    """Samples below which an undrifted series exceeds `threshold_nats` more often than `probability` per window.

    2 n_eff KL is chi-square with cells - 1 degrees of freedom, n_eff = n n0 / (n + n0), and n0 = baseline_ratio * n.

    >>> smallest_n(16, 0.12, 1e-2), smallest_n(40, 0.12, 1e-6)
    (134, 421)
    """
    from scipy.stats import chi2

    quantile = float(chi2.isf(probability, cells - 1))
    return int(np.ceil(quantile / (2 * threshold_nats) * (1 + 1 / baseline_ratio)))


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The chain rule, all in nats; `total` = `mix` + `service` to rounding."""

    total: NDArray[np.float64]
    mix: NDArray[np.float64]
    service: NDArray[np.float64]


def chain_rule(current: NDArray[Any], baseline: NDArray[Any], *, add: float = _HALF) -> Decomposed:
    """Splits the plain KL of joint counts (..., strata, K) into that of the strata and the mean one within strata.

    Args:
        current: Joint counts of stratum and latency bin.
        baseline: The same of the baseline.
        add: Pseudo-count in every joint cell.
    """
    p = _joint(current, add)
    q = _joint(baseline, add)
    p_mix, q_mix = p.sum(axis=-1), q.sum(axis=-1)
    mix = _sum_plogpq(p_mix, q_mix).sum(axis=-1)
    total = _sum_plogpq(p, q).sum(axis=(-2, -1))
    inside_p = np.divide(p, p_mix[..., None], out=np.zeros_like(p), where=p_mix[..., None] > 0)
    inside_q = np.divide(q, q_mix[..., None], out=np.zeros_like(q), where=q_mix[..., None] > 0)
    service = (p_mix * _sum_plogpq(inside_p, inside_q).sum(axis=-1)).sum(axis=-1)
    return Decomposed(total, mix, service)


def _joint(counts: NDArray[Any], add: float) -> NDArray[np.float64]:
    flat = counts.reshape(*counts.shape[:-2], -1)
    return _distribution(flat, add).reshape(counts.shape)


def _sum_plogpq(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    some = p > 0
    return np.where(some, p * (np.log(np.where(some, p, 1.0)) - np.log(np.maximum(np.where(some, q, 1.0), 1e-300))), 0.0)
