"""A recording as columns: what `slodrift compare` needs of every request, some 45 bytes each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.strata import uncached_tokens
from schemas.outcome import COUNTS_AGAINST_NODE, Outcome
from streams.framing import PoolRows
from streams.judge.rows import adapter_keys
from streams.sources.inputs import Inputs

__all__ = ["Recording", "read_recording"]

_SLICE_S, _LATENESS_S = 60.0, 10.0  # nothing is judged by them here: rows are sorted by time afterwards
_AGAINST = np.zeros(256, np.bool_)
_AGAINST[[int(outcome) for outcome in COUNTS_AGAINST_NODE]] = True


@dataclass(slots=True)
class Recording:
    """Requests of one pool in order of time; columns (n,).

    Attributes:
        ts_ns: Finish time, Unix nanoseconds.
        latency_s: Seconds, float32 (4, n); NaN where unknown or not answered well.
        ok: Answered well. `against`: ended in a way that counts against the node. `empty`: without a token.
        tokens: Prompt tokens that had to be computed. `output`: output tokens.
        adapted: The request names an adapter.
    """

    ts_ns: NDArray[np.int64]
    latency_s: NDArray[np.float32]
    ok: NDArray[np.bool_]
    against: NDArray[np.bool_]
    empty: NDArray[np.bool_]
    tokens: NDArray[np.uint32]
    output: NDArray[np.uint32]
    adapted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last request, without the outermost thousandth (clocks that are wrong)."""
        if len(self) == 0:
            return 0.0
        first, last = np.quantile(self.ts_ns, [0.001, 0.999])
        return float(last - first) / 1e9

    @classmethod
    def of(cls, parts: Sequence[PoolRows]) -> Recording:
        """All rows of the parts."""
        columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
        cache: dict[str, int] = {}
        for part in parts:
            batch = part.batch
            ok = batch.outcome == Outcome.OK
            columns["ts_ns"].append(batch.ts_ns)
            columns["latency_s"].append(np.where(ok, batch.latency_s, np.float32(np.nan)))
            columns["ok"].append(ok)
            columns["against"].append(_AGAINST[batch.outcome])
            columns["empty"].append(batch.outcome == Outcome.EMPTY)
            columns["tokens"].append(uncached_tokens(batch.prompt_tokens, batch.cached_tokens))
            columns["output"].append(batch.output_tokens)
            columns["adapted"].append(adapter_keys(batch, cache) != 0)
        joined = {f.name: np.concatenate(columns[f.name], axis=-1) for f in fields(cls)}
        order = np.argsort(joined["ts_ns"], kind="stable")
        return cls(**{name: column[..., order] for name, column in joined.items()})


def read_recording(path: str, mapping: Sequence[str] = ()) -> tuple[dict[str, Recording], Inputs, int]:
    """Requests of a file by pool, the input it came from (for its counts), and how many events were refused.

    Raises:
        SourceError: The file cannot be read.
        ConfigError: The mapping does not fit it.
    """
    inputs = Inputs([path], mapping)
    parts: dict[str, list[PoolRows]] = defaultdict(list)
    refused = 0
    for part in inputs.slices(_SLICE_S, _LATENESS_S):
        refused += len(part.rejects)
        for pool, rows in part.pools.items():
            if len(rows.batch):
                parts[pool].append(rows)
    return {pool: Recording.of(rows) for pool, rows in sorted(parts.items())}, inputs, refused
