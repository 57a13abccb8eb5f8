"""What a fleet costs, as sums of measured coefficients; each quantity is linear in the counts below.

The form follows from what the judge does: it decodes frames, sorts requests into ticks, counts samples into histograms, and
closes each tick with array operations over all series of a pool. So a cost is a constant a frame, a request, a sample (a
request's latency in one SLI), a tick of a pool, and a tick of a node. `slodrift bench scale` fits them and shows what it misses.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from schemas.errors import ConfigError

__all__ = ["COUNTS", "Calibration", "Counts", "load_calibration"]

COUNTS = ("frames", "requests", "samples", "pool_ticks", "node_ticks", "window_rows", "nodes", "pools")
_SHIPPED = "calibration.json"


class Counts(msgspec.Struct, kw_only=True, frozen=True):
    """Of a second of event time; `nodes` and `pools` are simply how many there are."""

    frames: float
    requests: float
    samples: float
    pool_ticks: float
    node_ticks: float
    window_rows: float
    nodes: float
    pools: float


class Calibration(msgspec.Struct, kw_only=True):
    """Coefficients, by quantity and count.

    Attributes:
        machine, versions, date: Where and when they were measured.
        coefficients: Of `cpu_s` and `archive_s` (CPU seconds a second), `memory_bytes` and `snapshot_bytes` (at a time, before
            compression), `frame_bytes`, `window_bytes`, `stored_rows` (a second).
        residual_ratio: Largest deviation of the fit from its own measurements, by quantity.
        yardstick_s: CPU seconds of `bench/yardstick.py` on that machine then: what CPU seconds are compared by.
        live_frame_s, live_pool_tick_s: What Faust, Kafka and Redis add in a live worker to a frame and to a tick of a pool, CPU
            seconds.
        live_base_bytes: Resident memory of a live worker beside its pools: code, and what is on its way.
        redis_per_pool_s: Function calls to Redis for each pool, a second.
    """

    machine: str
    versions: dict[str, str]
    date: str
    coefficients: dict[str, dict[str, float]]
    residual_ratio: dict[str, float]
    yardstick_s: float
    live_frame_s: float = 0.0
    live_pool_tick_s: float = 0.0
    live_base_bytes: float = 0.0
    redis_per_pool_s: float = 1.0

    def predict(self, quantity: str, counts: Counts) -> float:
        """Value of `quantity` for `counts`."""
        return sum(factor * float(getattr(counts, name)) for name, factor in self.coefficients[quantity].items())

    def live_cpu_s(self, counts: Counts) -> float:
        """CPU seconds a second of live judges."""
        beyond = self.live_frame_s * counts.frames + self.live_pool_tick_s * counts.pool_ticks
        return self.predict("cpu_s", counts) + beyond


def load_calibration(path: Path | None = None) -> Calibration:
    """The calibration in `path`, or the one that is shipped.

    Raises:
        ConfigError: The file cannot be read, or is no calibration.
    """
    try:
        raw = (resources.files("streams.plan") / _SHIPPED).read_bytes() if path is None else path.read_bytes()
        return msgspec.json.decode(raw, type=Calibration)
    except (OSError, msgspec.MsgspecError) as exc:
        raise ConfigError(
            f"{path or _SHIPPED}: no calibration ({exc}); write one with: slodrift bench scale --write FILE"
        ) from None
