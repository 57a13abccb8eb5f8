"""Sketch frames: a node whose rate is very high sends groups of requests that are alike instead of requests.

`condense` makes of all requests of a node in a slice of time so many rows with weights as its histograms have used buckets,
however many requests there were. `schemas.frame.encode_request_frame` writes them (kind "sketch"):

    every second: batch = finished requests of this node
        if len(batch) >= SKETCH_FROM: batch = condense(batch, cuts={"ttft_s": [1.0]})
        producer.send("telemetry.frames", encode_request_frame(FrameHeader(pool=..., node=..., boot_id=..., seq=...), batch))

How: requests are grouped by all that the judge tells apart and that is no latency. Inside a group each latency is sorted by
itself, and the four sorted columns are laid side by side (coupled by rank: comonotone). Where any of them enters another bucket
of the judge's histograms (32 an octave, cut by the float's bits) a row ends. The row's latencies are those of its middle rank.

What stays exact:

* numbers of requests, by outcome, node, tick, adapter, tenant, class of prompt length, probing host, foreign KV slot, answer
  without a token, and contrary times;
* the histogram of every latency, bucket by bucket, and with it every quantile in windows and verdicts;
* requests beyond a contractual SLO, and failures, for thresholds given as `cuts`; otherwise a bucket (3 %) that holds the
  threshold counts on one side of it as a whole;
* when a node was last asked and last answered well; refused values are refused, with their number.

What is lost:

* which latencies occurred together inside a group, and the order inside a slice: each row has the last time of its group. Where
  probes are not marked, the first requests of each second are taken for probes: of sketches, as many bad ones as their share is,
  and of one second a slice, so `slice_s` beyond 1 makes a half-open node wait longer;
* token counts within a bin (prompt, prompt not cached, output: octaves, `bins_per_octave`): each row has its group's mean. A
  latency measured against what its tokens lead one to expect is blurred by up to half a bin, so its distribution is wider than
  that of the same requests sent one by one. A node should therefore send sketches always or never: going to and fro would look
  like a change of its latencies;
* sessions, unless `sessions`: requests without a session say nothing about session buckets, while errors alone with theirs
  would accuse them; batch sizes, request identity.

The framer does not condense: what it drops as delivered twice it knows by source offsets, which a group has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.batch import CONTRARY_ROUNDING, LATENCY_SLIS, UNKNOWN_TOKENS, RequestBatch
from schemas.scopes import PROMPT_CLASSES, SESSION_BUCKETS

__all__ = ["SKETCH_FROM", "condense"]

SKETCH_FROM = 20_000
"""Requests of a node in one slice from which on condensing pays, see docs/performance.md ("Sketch frames")."""

_BUCKET_BITS = 18  # of a float32's mantissa that a bucket does not look at: 5 of 23 are left, 32 buckets an octave
_FIRST_OCTAVE = 8  # prompts below 2**8 tokens share a stratum
_MAX_LATENCY_S = np.float32(3600.0)
_WIDE = 1 << 40

Ints = NDArray[np.int64]


def condense(
    batch: RequestBatch, *, slice_s: float = 1.0, cuts: Mapping[str, Sequence[float]] | None = None, sessions: bool = False,
    bins_per_octave: int = 1,
) -> RequestBatch:  # fmt: skip
    """Rows with weights that stand for the requests of `batch`, in order of time.

    Args:
        batch: Requests of one node.
        slice_s: Requests of different slices of event time are never put together. The default suits every policy whose
            `tick_s` is a whole number of seconds; other ticks are blurred at their ends by up to a slice. A node that knows
            the `tick_s` of its pool gives that, and needs so many rows less.
        cuts: Of a latency SLI, thresholds in seconds that no row may straddle: those of the contractual SLOs.
        sessions: Keep the hash bucket of the session; that makes up to 1,024 times as many groups.
        bins_per_octave: Bins of token counts, 1 or more.

    Raises:
        ValueError: The rows are of several nodes or have weights already, or an argument is out of range.

    >>> from schemas.batch import RequestBatch
    >>> n = 50_000
    >>> rng, none, zero = np.random.default_rng(0), np.full(n, UNKNOWN_TOKENS), np.zeros(n, np.uint32)
    >>> batch = RequestBatch(
    ...     "p", ["n1"], zero, np.full(n, 10**18), rng.lognormal(-2, 0.3, (4, n)).astype(np.float32), zero.astype(np.uint8),
    ...     none, none, none, none, zero.astype(np.int8), [], none, [], none, zero, zero.astype(np.bool_))
    >>> rows = condense(batch)
    >>> rows.requests, len(rows) < 600
    (50000, True)
    """
    if len(batch) == 0:
        return batch
    if batch.weight is not None:
        raise ValueError("these rows have weights already")
    if (batch.node != batch.node[0]).any():
        raise ValueError("rows of several nodes: a sketch is of one node")
    slice_ns = round(slice_s * 1e9)
    if slice_ns < 1 or bins_per_octave < 1:
        raise ValueError("slice_s and bins_per_octave must be positive")
    bits = (batch.latency_s + np.float32(0)).view(np.int32).astype(np.int64)  # minus zero is zero
    group = _numbered(len(batch), _keys(batch, slice_ns, cuts or {}, sessions, bins_per_octave))
    # Each latency sorted inside each group: the group in front of its bits, which are in the order of the values from 0 on.
    ordered = np.sort((group << 32) + bits, axis=1)
    changes = np.diff(ordered >> _BUCKET_BITS, axis=1).any(axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    weight = np.diff(starts, append=len(batch))
    middle = starts + (weight - 1) // 2
    of = (ordered[0, middle] + (1 << 31)) >> 32  # NaN may be negative
    latency_s = (ordered[:, middle] - (of << 32)).astype(np.int32).view(np.float32)
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(int(group.max()) + 1))
    prompt, left = _means(batch.prompt_tokens, order, first)[of], _means(_uncached(batch), order, first)[of]
    some = order[first][of]
    cached = np.full(len(of), UNKNOWN_TOKENS, np.uint32)
    known = (batch.cached_tokens != UNKNOWN_TOKENS).any() & (prompt != UNKNOWN_TOKENS)
    cached[known] = prompt[known] - left[known]
    session = np.zeros(len(of), np.uint32)
    if sessions:
        bucket = batch.session[some] % np.uint32(SESSION_BUCKETS)
        session = np.where(batch.session[some] == 0, np.uint32(0), np.where(bucket == 0, np.uint32(SESSION_BUCKETS), bucket))
    return RequestBatch(
        pool=batch.pool, nodes=[batch.nodes[int(batch.node[0])]], node=np.zeros(len(of), np.uint32),
        ts_ns=np.maximum.reduceat(batch.ts_ns[order], first)[of], latency_s=latency_s, outcome=batch.outcome[some],
        prompt_tokens=prompt, output_tokens=_means(batch.output_tokens, order, first)[of], cached_tokens=cached,
        batch_size=np.full(len(of), UNKNOWN_TOKENS, np.uint32), probe=batch.probe[some],
        adapters=batch.adapters, adapter=batch.adapter[some], tenants=batch.tenants, tenant=batch.tenant[some],
        session=session, kv_mismatch=batch.kv_mismatch[some], weight=weight.astype(np.uint32),
    )  # fmt: skip


def _keys(
    batch: RequestBatch, slice_ns: int, cuts: Mapping[str, Sequence[float]], sessions: bool, per_octave: int
) -> Iterator[NDArray[Any]]:
    """What rows of one group have in common, the slice of time first."""
    yield batch.ts_ns // slice_ns
    yield batch.outcome
    yield batch.adapter
    yield batch.tenant
    yield np.searchsorted(np.array(PROMPT_CLASSES), batch.prompt_tokens, side="right") + (batch.prompt_tokens == UNKNOWN_TOKENS)
    yield _token_bin(batch.prompt_tokens, per_octave, _FIRST_OCTAVE)
    yield _token_bin(_uncached(batch), per_octave, _FIRST_OCTAVE)
    # None and one are their own: an answer without a token is counted, and one token has no time per token.
    yield _token_bin(batch.output_tokens, per_octave, 4) + np.minimum(batch.output_tokens, 2)
    yield batch.probe.astype(np.int64) + 128
    yield batch.kv_mismatch
    ttft_s, e2e_s = (batch.latency_s[LATENCY_SLIS.index(name)] for name in ("ttft_s", "e2e_s"))
    yield ttft_s > e2e_s * CONTRARY_ROUNDING[0] + CONTRARY_ROUNDING[1]
    for sli, name in enumerate(LATENCY_SLIS):
        # A row that is refused (negative, endless, too long) must not take others with it, nor hide among them.
        edges = [np.nextafter(np.float32(0), np.float32(-1)), _MAX_LATENCY_S, np.finfo(np.float32).max]
        edges += [np.float32(cut) for cut in cuts.get(name, ())]
        # The number of edges below the value, so equal to a threshold is not beyond it; NaN is above all.
        yield np.searchsorted(np.sort(np.array(edges, np.float32)), batch.latency_s[sli]) + np.isnan(batch.latency_s[sli])
    if sessions:
        yield np.where(batch.session == 0, SESSION_BUCKETS, batch.session % np.uint32(SESSION_BUCKETS))


def _numbered(n: int, keys: Iterator[NDArray[Any]]) -> Ints:
    """Number of the combination of keys of each row, in the order of the keys, without gaps, (n,)."""
    code, span = np.zeros(n, np.int64), 1
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        if high - low >= _WIDE:
            key = np.unique(key, return_inverse=True)[1]
            low, high = 0, len(key)
        if span * (high - low + 1) > _WIDE:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
            span = int(code.max()) + 1
        code = code * (high - low + 1) + (key.astype(np.int64) - low)
        span *= high - low + 1
    return np.unique(code, return_inverse=True)[1].astype(np.int64)


def _token_bin(tokens: NDArray[np.uint32], per_octave: int, first: int) -> Ints:
    """Bin of a token count: shorter than 2**first together, then `per_octave` an octave; unknown in one of its own."""
    logs = np.log2(np.maximum(tokens, 1).astype(np.float64))
    bins = np.floor(np.maximum(logs - first, -1 / per_octave) * per_octave).astype(np.int64) + 1
    bins[tokens == UNKNOWN_TOKENS] = 64 * per_octave
    return np.asarray(bins)


def _uncached(batch: RequestBatch) -> NDArray[np.uint32]:
    """Prompt tokens to be computed, as the judge's model takes them (`detectors.strata.uncached_tokens`)."""
    cached = np.where(batch.cached_tokens == UNKNOWN_TOKENS, np.uint32(0), batch.cached_tokens)
    left = batch.prompt_tokens - np.minimum(cached, batch.prompt_tokens)
    return np.asarray(np.where(batch.prompt_tokens == UNKNOWN_TOKENS, UNKNOWN_TOKENS, left))


def _means(tokens: NDArray[np.uint32], order: NDArray[np.intp], first: NDArray[np.intp]) -> NDArray[np.uint32]:
    """Mean of each group, rounded down, uint32 (groups,): inside the group's bin, since bins are intervals."""
    sums = np.add.reduceat(tokens[order].astype(np.int64), first)
    return np.asarray(sums // np.diff(first, append=len(order)), np.uint32)
