"""Where requests come from: Poisson arrivals with lognormal lengths, or a recorded trace.

Trace files have the columns of the Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from schemas.errors import SourceError

__all__ = ["Arrival", "PoissonWorkload", "TraceWorkload", "Workload", "read_trace"]

_CHUNK = 4096  # random numbers drawn at once: one call of the generator costs as much as a hundred numbers


class Arrival(NamedTuple):
    """Next request: how long after the one before, and how long it is."""

    gap_s: float
    prompt_tokens: int
    output_tokens: int


class Workload(Protocol):
    """A source of arrivals that never ends."""

    def next(self) -> Arrival:
        """The next arrival at the nominal rate."""


def _drawn(draw: Callable[[int], np.ndarray]) -> Iterator[float]:
    while True:
        yield from draw(_CHUNK).tolist()


class PoissonWorkload:
    """Poisson arrivals; prompt and output lengths are lognormal.

    Args:
        rate_per_s: Mean arrivals per second.
        rng: Source of randomness.
        prompt_tokens, output_tokens: Medians.
        prompt_sigma, output_sigma: Standard deviations of the logarithm.
    """

    def __init__(
        self, rate_per_s: float, rng: np.random.Generator, *, prompt_tokens: float = 550, prompt_sigma: float = 0.7,
        output_tokens: float = 100, output_sigma: float = 0.6,
    ) -> None:  # fmt: skip
        self._gap_s = _drawn(lambda n: rng.exponential(1.0 / rate_per_s, n))
        self._prompt = _drawn(lambda n: np.clip(rng.lognormal(np.log(prompt_tokens), prompt_sigma, n), 4, 32_000))
        self._output = _drawn(lambda n: np.clip(rng.lognormal(np.log(output_tokens), output_sigma, n), 1, 4_000))

    def next(self) -> Arrival:
        """The next arrival."""
        return Arrival(next(self._gap_s), round(next(self._prompt)), round(next(self._output)))


class TraceWorkload:
    """Arrivals of a recorded trace, repeated when it ends.

    Args:
        arrivals: As `read_trace` gives them.
        rate_per_s: Mean rate to stretch or squeeze time to; None keeps the recorded times.
    """

    def __init__(self, arrivals: list[Arrival], rate_per_s: float | None = None) -> None:
        recorded_s = sum(a.gap_s for a in arrivals)
        self._scale = 1.0 if rate_per_s is None else len(arrivals) / (recorded_s * rate_per_s)
        self._arrivals = itertools.cycle(arrivals)

    def next(self) -> Arrival:
        """The next arrival."""
        arrival = next(self._arrivals)
        return arrival._replace(gap_s=arrival.gap_s * self._scale)


def read_trace(path: Path) -> list[Arrival]:
    """Read a trace CSV; the first gap is the mean gap, so that repeating the trace joins smoothly.

    Raises:
        SourceError: If the file cannot be read, lacks a column, or holds fewer than two requests.
    """
    times_s: list[float] = []
    lengths: list[tuple[int, int]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    stamp = row["TIMESTAMP"]
                    # seven fractional digits, of which Python's parser takes six
                    times_s.append(datetime.fromisoformat(stamp[:26] + stamp[27:]).replace(tzinfo=UTC).timestamp())
                    lengths.append((max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))))
                except (KeyError, TypeError, ValueError) as exc:
                    raise SourceError(
                        f"{path}:{line}: not a trace row ({exc}): columns TIMESTAMP,ContextTokens,GeneratedTokens are needed"
                    ) from None
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror}") from None
    if len(times_s) < 2 or times_s[-1] <= times_s[0]:
        raise SourceError(f"{path}: a trace needs at least two requests at different times, this has {len(times_s)}")
    gaps_s = np.maximum(np.diff(times_s), 0.0)
    all_gaps_s = [float(gaps_s.mean()), *gaps_s.tolist()]
    return [Arrival(gap_s, *length) for gap_s, length in zip(all_gaps_s, lengths, strict=True)]
