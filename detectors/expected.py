"""What latency a request should have had, given its size: the part of a latency that is the workload's and not the node's.

TTFT and queueing grow with the prompt tokens to be computed, TPOT barely, end-to-end latency with the output tokens. For
each SLI the pool's learning phase fits ``seconds = a + b * prompt tokens + c * output tokens`` with a, b, c >= 0 in
relative error (prefill and decode are affine in tokens to within a few per cent on measured GPU profiles). Everything after
works on the ratio latency / expected, so a change of the mix of requests inside a stratum does not look like a change of
service.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.batch import UNKNOWN_TOKENS

__all__ = ["expected_log2", "fit"]

_ROUNDS = 4
_HUBER = 1.0
_FIT_ROWS = 20_000
_TERMS: tuple[tuple[int, ...], ...] = ((0,), (0, 1), (0, 2), (0, 1, 2))
_PENALTY = 16.0
"""A term must lower the chi-square by this much (four standard errors): a trend that is noise would tilt every long
prompt."""


def _known(tokens: NDArray[np.uint32]) -> NDArray[np.float64]:
    return np.where(tokens == UNKNOWN_TOKENS, 0.0, tokens)


def fit(latency_s: NDArray[np.float32], tokens: NDArray[np.uint32], output_tokens: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Coefficients (a, b, c) of each SLI, float32 (slis, 3), seconds and seconds per token.

    A robust fit (Huber weights) in relative error, so that neither long requests nor a few stalled ones rule it. The order
    of rows must be canonical when results are to be equal byte for byte.

    Args:
        latency_s: float32 (slis, n), NaN where unknown.
        tokens: Prompt tokens to be computed, uint32 (n,).
        output_tokens: uint32 (n,).
    """
    out = np.zeros((len(latency_s), 3), np.float32)
    step = -(-latency_s.shape[1] // _FIT_ROWS) or 1
    features = np.stack([np.ones(latency_s.shape[1]), _known(tokens), _known(output_tokens)])[:, ::step]
    scale = np.maximum(features.max(axis=1, initial=1.0), 1.0)
    for sli, seconds in enumerate(latency_s[:, ::step]):
        usable = np.isfinite(seconds) & (seconds > 0)
        if not usable.any():
            out[sli, 0] = 1.0
            continue
        y = seconds[usable].astype(np.float64)
        x = features[:, usable] / scale[:, None]
        fits = [_fit_terms(x[list(terms)], y) for terms in _TERMS]
        noise = min(loss for _, loss in fits) / len(y) + 1e-12
        best = min(range(len(_TERMS)), key=lambda i: fits[i][1] / noise + _PENALTY * len(_TERMS[i]))
        out[sli, list(_TERMS[best])] = fits[best][0] / scale[list(_TERMS[best])]
    return out


def _fit_terms(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Non-negative coefficients and the sum of squared log residuals (each clipped, against outliers)."""
    guess = np.full(len(y), np.exp(np.median(np.log(y))))
    beta = np.zeros(len(x))
    for _ in range(_ROUNDS):
        relative = y / guess - 1
        weight = np.sqrt(np.minimum(1.0, _HUBER / np.maximum(np.abs(relative), 1e-12))) / guess
        beta = _least_squares(x * weight, y * weight)
        guess = np.maximum(beta @ x, 1e-6)
    residual = np.log(y / guess)
    residual -= np.median(residual)
    return beta, float(np.square(np.clip(residual, -1.5, 1.5)).sum())


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-negative least squares of y on the rows of x, by way of the few normal equations."""
    from scipy.linalg import solve_triangular  # half the start-up of a command, needed when a pool has learned
    from scipy.optimize import nnls

    gram = x @ x.T
    root = np.linalg.cholesky(gram + 1e-12 * np.trace(gram) * np.eye(len(x)))
    beta: NDArray[np.float64] = nnls(root.T, solve_triangular(root, x @ y, lower=True))[0]
    return beta


def expected_log2(
    coefficients: NDArray[np.float32], tokens: NDArray[np.uint32], output_tokens: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """log2 of the expected seconds of each row, float32 (slis, n). An unknown token count is taken as zero.

    Args:
        coefficients: Result of `fit`, (slis, 3).
        tokens: Prompt tokens to be computed, uint32 (n,).
        output_tokens: uint32 (n,).
    """
    seconds = coefficients[:, 1:2] * _or_zero(tokens)
    seconds += coefficients[:, :1]
    if coefficients[:, 2].any():
        seconds += coefficients[:, 2:] * _or_zero(output_tokens)
    np.maximum(seconds, np.float32(1e-6), out=seconds)
    return np.asarray(np.log2(seconds, out=seconds), np.float32)


def _or_zero(tokens: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float32]:
    """As float32, with zero for unknown ones; counts of 16 bits are all known."""
    made = tokens.astype(np.float32)
    if tokens.dtype != np.uint16:
        made[tokens == UNKNOWN_TOKENS] = 0
    return made
