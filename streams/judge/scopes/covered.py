"""What of a tick's requests breakers of sessions and request classes look at: a few small columns, kept until the tick closes.

They are kept as rows because which names are request classes is known only when the tick closes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, joined, picked, total
from schemas.batch import UNKNOWN_TOKENS
from schemas.scopes import PROMPT_CLASSES
from streams.judge.columns import is_constant, join
from streams.judge.rows import Rows

__all__ = ["NO_PROMPT", "Covered"]

Bools = NDArray[np.bool_]

NO_PROMPT = len(PROMPT_CLASSES)
_STEP = 256
_CLASS_OF_STEP = np.searchsorted(
    np.array(PROMPT_CLASSES[1:]), np.arange(PROMPT_CLASSES[-1] // _STEP + 1) * _STEP, side="right"
).astype(np.uint8)

_COLUMNS: dict[str, type[np.generic]] = {
    "node": np.uint32, "adapter": np.uint16, "tenant": np.uint16, "session": np.uint16, "prompt": np.uint8,
    "ok": np.bool_, "error": np.bool_, "failed": np.bool_,
}  # fmt: skip


@dataclass(slots=True)
class Covered:
    """`n` requests that say something about the service, in the order in which the histograms get the good ones.

    Attributes:
        node: Seat of the node.
        adapter, tenant: Numbers of names, 0 for none.
        session: Hash bucket, `SESSION_BUCKETS` for none.
        prompt: Index in `PROMPT_CLASSES`, `NO_PROMPT` where unknown.
        ok, error, failed: Answered well; an outcome against the node; that, or beyond a contractual SLO.
        weight: Requests that each row stands for; None where all stand for one.
    """

    node: NDArray[np.uint32]
    adapter: NDArray[np.uint16]
    tenant: NDArray[np.uint16]
    session: NDArray[np.uint16]
    prompt: NDArray[np.uint8]
    ok: Bools
    error: Bools
    failed: Bools
    weight: Weight = None

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def of(cls, rows: Rows, ok: Bools, error: Bools, failed: Bools) -> Covered:
        """Columns of the rows that are `ok` or an `error`."""
        step = np.minimum(rows.prompt_tokens // _STEP, len(_CLASS_OF_STEP) - 1)
        prompt = _CLASS_OF_STEP[step]
        prompt[rows.prompt_tokens == UNKNOWN_TOKENS] = NO_PROMPT
        whole = cls(rows.node, rows.adapter_no, rows.tenant_no, rows.session, prompt, ok, error, failed, rows.weight)
        if is_constant(ok) and ok[0]:  # all of them, and nothing need be looked at
            return whole
        counted = ok | error
        return whole if counted.all() else whole.take(counted)

    @classmethod
    def concat(cls, parts: Sequence[Covered]) -> Covered:
        """All rows of the parts, in order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(**{name: np.zeros(0, dtype) for name, dtype in _COLUMNS.items()})
        weight = joined((part, part.weight) for part in parts)
        return cls(**{name: join([getattr(part, name) for part in parts]) for name in _COLUMNS}, weight=weight)

    def take(self, rows: Bools) -> Covered:
        """The chosen rows."""
        return Covered(**{name: getattr(self, name)[rows] for name in _COLUMNS}, weight=picked(self.weight, rows))

    def many(self, rows: Bools) -> int:
        """Requests of the chosen rows."""
        return total(rows, self.weight)

    def dump(self) -> dict[str, bytes]:
        """Columns as bytes, for a snapshot."""
        names = _COLUMNS if self.weight is None else (*_COLUMNS, "weight")
        return {name: np.ascontiguousarray(getattr(self, name)).tobytes() for name in names}

    @classmethod
    def load(cls, raw: dict[str, Any]) -> Covered:
        """What `dump` wrote."""
        weight = np.frombuffer(raw["weight"], np.uint32) if "weight" in raw else None
        return cls(**{name: np.frombuffer(raw[name], dtype) for name, dtype in _COLUMNS.items()}, weight=weight)
