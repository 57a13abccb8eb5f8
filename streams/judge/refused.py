"""Events that the judge refuses, as JSON for the dead letters: rebuilt from columns, since their frame held others too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from schemas.batch import UNKNOWN_TOKENS
from schemas.outcome import Outcome
from schemas.telemetry import RequestEvent
from streams.judge.rows import Rows

__all__ = ["MAX_KEPT", "Refused", "rows_as_json"]

MAX_KEPT = 1000
"""Refused events kept a tick; further ones are counted alone, so that a broken clock cannot fill the memory."""

Refused = tuple[str, bytes]
"""Reason and JSON."""


def rows_as_json(pool: str, names: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """The JSON event of each row; what the columns do not keep (tenant, session, identifier) is null.

    A row of a sketch frame gives one event, however many requests it stands for: they are counted where it is refused.

    Args:
        pool: Name.
        names: Node names by number.
        rows: Requests.
    """
    for i in range(len(rows)):
        ttft_s, tpot_s, queue_s, e2e_s = (None if np.isnan(value) else round(float(value), 9) for value in rows.latency_s[:, i])
        event = RequestEvent(
            ts=int(rows.ts_ns[i]) / 1e9, pool=pool, node=names[int(rows.node[i])],
            outcome=Outcome(int(rows.outcome[i])).name.lower(),
            ttft_s=ttft_s, tpot_s=tpot_s, queue_s=queue_s, e2e_s=e2e_s,
            prompt_tokens=_tokens(rows.prompt_tokens[i]), output_tokens=_tokens(rows.output_tokens[i]),
        )  # fmt: skip
        yield msgspec.json.encode(event)


def _tokens(count: np.uint32) -> int | None:
    return None if count == UNKNOWN_TOKENS else int(count)
