"""Is a class of requests at fault, or the nodes that serve it? Compared on the same nodes, as Mantel and Haenszel (1959) do.

A node that fails takes all classes with it, and a class that lives on few nodes shares their fate: so a class is measured against
what the other requests on its own nodes lead one to expect, node by node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contrast", "contrast", "own_fault", "own_shift", "session_expected"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SERVED = 5  # requests of a class before a node says anything about it


class Contrast(NamedTuple):
    """Classes against the other requests on the same nodes; arrays (C,).

    Attributes:
        requests: Of the class, on nodes that also serve others.
        failed: Of these.
        expected: As many would fail if the class were like the others.
        served, hit: Nodes that answered enough of it, and those where it fails like it does on the whole.
    """

    requests: Ints
    failed: Ints
    expected: Floats
    served: Ints
    hit: Ints

    @property
    def ratio(self) -> Floats:
        """Failed share of the class; 0 without requests."""
        return np.asarray(self.failed / np.maximum(self.requests, 1))

    @property
    def others_ratio(self) -> Floats:
        """Expected share."""
        return np.asarray(self.expected / np.maximum(self.requests, 1))


def contrast(total: Ints, failed: Ints, all_total: Ints, all_failed: Ints) -> Contrast:
    """Compare each class with the rest.

    Args:
        total: Requests of each class on each node, (C, G).
        failed: The failed ones of them.
        all_total: All requests of each node, (G,).
        all_failed: The failed ones of them.

    >>> import numpy as np
    >>> total = np.array([[100, 100], [300, 300]])
    >>> failed = np.array([[50, 40], [3, 3]])
    >>> c = contrast(total, failed, total.sum(axis=0), failed.sum(axis=0))
    >>> own_fault(c, 2.0, 0.01).tolist()
    [True, False]
    """
    rest, rest_failed = all_total - total, all_failed - failed
    usable = rest > 0
    ratio = np.where(usable, rest_failed / np.maximum(rest, 1), 0.0)
    n, bad = np.where(usable, total, 0).sum(axis=1), np.where(usable, failed, 0).sum(axis=1)
    served = total >= _SERVED
    share = (failed.sum(axis=1) / np.maximum(total.sum(axis=1), 1))[:, None]
    hit = served & (failed > 0) & (failed >= 0.5 * share * total)
    return Contrast(n, bad, (usable * total * ratio).sum(axis=1), served.sum(axis=1), hit.sum(axis=1))


def own_fault(c: Contrast, times: float, margin_ratio: float) -> Bools:
    """Classes that fail at least `times` as often as expected and by `margin_ratio` more, on two nodes where two serve them."""
    worse = (c.failed > 0) & (c.failed >= times * c.expected) & (c.failed >= c.expected + margin_ratio * c.requests)
    return np.asarray(worse & (c.requests > 0) & (c.hit >= np.minimum(2, np.maximum(c.served, 1))))


def own_shift(sums: Floats, counts: Ints, all_sums: Floats, all_counts: Ints) -> tuple[Floats, Floats]:
    """Mean shift of log-latency of each class, and of the others on the same nodes, nats (S, C); NaN where nothing is known.

    Args:
        sums: Sums of log-latency over its expectation, (S, C, G).
        counts: Latencies in them.
        all_sums: Sums of all requests of each node, (S, G).
        all_counts: Latencies in them.
    """
    n = counts.sum(axis=-1)
    rest_n = all_counts[:, None] - counts
    with np.errstate(invalid="ignore", divide="ignore"):
        mine = sums.sum(axis=-1) / n
        rest = np.where(rest_n > 0, (all_sums[:, None] - sums) / rest_n, 0.0)
        weight = np.where(rest_n > 0, counts, 0)
        others = (weight * rest).sum(axis=-1) / weight.sum(axis=-1)
    return mine, others


def session_expected(
    bucket: Ints, node: Ints, failed: Ints, requests: Ints, all_total: Ints, all_failed: Ints, n_buckets: int
) -> Floats:
    """Failures to expect of each session bucket, (n_buckets,), from where its failures happened.

    Sessions are many and stick to nodes, so only failures are kept by node. The expectation leans towards the nodes that fail,
    which can only acquit.

    Args:
        bucket: Of each pair of bucket and node with failures, every pair once, (k,).
        node: Of each pair.
        failed: Failures of each pair.
        requests: Requests of each bucket, (n_buckets,).
        all_total: Requests of each node, (N,).
        all_failed: Failures of each node.
        n_buckets: How many buckets there are.
    """
    others_failed = all_failed[node] - failed
    others = np.maximum(all_total[node] - np.minimum(requests[bucket], all_total[node]), np.maximum(others_failed, 1))
    mean = np.bincount(bucket, weights=failed * others_failed / others, minlength=n_buckets)
    all_of = np.bincount(bucket, weights=failed, minlength=n_buckets)
    return np.asarray(requests * mean / np.maximum(all_of, 1.0))
