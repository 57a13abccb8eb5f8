"""From a fleet to what it needs: workers, partitions, rows and bytes a day, Kafka and Redis traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from schemas.cells import MAX_CELLS
from schemas.contract import Entry, build, encode
from streams.plan.model import Calibration, Counts

__all__ = ["Fleet", "Plan", "cells_needed", "plan"]

USE = 0.6  # share of a core that a judge is planned to use: the rest is for catching up, snapshots and a lost neighbour
MAX_FRAME_ROWS = 1000
SNAPSHOT_S = 30.0
QUIET_S = 60.0
ROW_BYTES = {"windows": 23.0, "window_hours": 13.0}
"""Bytes of a stored row after compression, rounded up from `slodrift bench archive`."""
_DAY_S = 86_400


@dataclass(frozen=True)
class Fleet:
    """What there is.

    Attributes:
        nodes, pools: Serving nodes, and groups of interchangeable ones, of about equal size.
        rps: Requests a second, all together.
        slis: Latencies that are reported, 1 to 4.
        tick_s: Length of a tick, seconds.
        frame_s: A node sends a frame at least this often, seconds.
        open_ratio: Share of the nodes that are not closed at the worst, for the size of what Redis holds.
    """

    nodes: int
    rps: float
    pools: int
    slis: int = 4
    tick_s: float = 5.0
    frame_s: float = 5.0
    open_ratio: float = 0.1

    @property
    def rows_per_frame(self) -> float:
        """Requests in a frame."""
        return self.rps / self.frames_per_s

    @property
    def frames_per_s(self) -> float:
        """A node with more requests than a frame should have sends them more often."""
        return max(self.nodes / self.frame_s, self.rps / MAX_FRAME_ROWS)

    def counts(self) -> Counts:
        """Counts that costs grow with."""
        return Counts(
            frames=self.frames_per_s, requests=self.rps, samples=self.rps * self.slis, pool_ticks=self.pools / self.tick_s,
            node_ticks=self.nodes / self.tick_s, window_rows=self.nodes * (self.slis + 2) / self.tick_s, nodes=self.nodes,
            pools=self.pools,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a fleet needs.

    Attributes:
        judge_cores: CPU of all judges, cores; `workers` at `USE` of a core each.
        archive_cores: CPU of the archive for thinning; storing is ClickHouse's and the network's.
        partitions: Of each topic that is partitioned by pool.
        pool_cores: Of a pool as a whole, which one partition must carry.
        cells: Into how many cells each pool must be split so that one partition carries a cell at `USE` of a core; 1 leaves it
            whole, 0 says that no number is enough. The other numbers count the cells.
        cell_cores: Of a cell.
        worker_bytes: Resident memory of a judge.
        kafka_in_bytes_per_s, kafka_out_bytes_per_s: Frames; windows and snapshots.
        stored_rows_per_day, hour_rows_per_day, stored_bytes_per_day: ClickHouse.
        redis_per_s, redis_bytes_per_s: Function calls of the judges, and what they carry.
    """

    judge_cores: float
    workers: int
    archive_cores: float
    partitions: int
    pool_cores: float
    cells: int
    cell_cores: float
    worker_bytes: float
    kafka_in_bytes_per_s: float
    kafka_out_bytes_per_s: float
    stored_rows_per_day: float
    hour_rows_per_day: float
    stored_bytes_per_day: float
    redis_per_s: float
    redis_bytes_per_s: float


def plan(fleet: Fleet, calibration: Calibration) -> Plan:
    """What `fleet` needs by `calibration`."""
    pool_cores = calibration.live_cpu_s(fleet.counts()) / fleet.pools
    cells = cells_needed(fleet, calibration)
    fleet = replace(fleet, pools=fleet.pools * max(1, cells))  # a cell is a pool
    counts = fleet.counts()
    cores = calibration.live_cpu_s(counts)
    workers = max(1, math.ceil(cores / USE))
    series = fleet.nodes * (fleet.slis + 2)
    stored = calibration.predict("stored_rows", counts) * min(1.0, fleet.tick_s / QUIET_S) * 12.0 * _DAY_S
    stored = max(stored, series * _DAY_S / QUIET_S)
    hours = series * 24.0
    snapshots = calibration.predict("snapshot_bytes", counts) / SNAPSHOT_S
    return Plan(
        judge_cores=cores,
        workers=workers,
        archive_cores=calibration.predict("archive_s", counts),
        partitions=min(fleet.pools if cells <= 1 else max(fleet.pools, 16), max(16, 1 << (4 * workers - 1).bit_length())),
        pool_cores=pool_cores,
        cells=cells,
        cell_cores=cores / fleet.pools,
        worker_bytes=calibration.live_base_bytes + calibration.predict("memory_bytes", counts) / workers,
        kafka_in_bytes_per_s=calibration.predict("frame_bytes", counts),
        kafka_out_bytes_per_s=calibration.predict("window_bytes", counts) + snapshots,
        stored_rows_per_day=stored,
        hour_rows_per_day=hours,
        stored_bytes_per_day=stored * ROW_BYTES["windows"] + hours * ROW_BYTES["window_hours"],
        redis_per_s=calibration.redis_per_pool_s * fleet.pools,
        redis_bytes_per_s=calibration.redis_per_pool_s * fleet.pools * _redis_bytes(fleet),
    )


def cells_needed(fleet: Fleet, calibration: Calibration) -> int:
    """Least power of two of cells a pool that leaves none with more than `USE` of a core, or 0: not even that of single nodes.

    Powers of two, because numbered nodes fall evenly into them (`schemas.cells`).
    """
    cells = 1
    while cells <= MAX_CELLS and (cells == 1 or fleet.pools * cells <= fleet.nodes):
        split = replace(fleet, pools=fleet.pools * cells)
        if calibration.live_cpu_s(split.counts()) / split.pools <= USE:
            return cells
        cells *= 2
    return 0


def _redis_bytes(fleet: Fleet) -> float:
    """Bytes of one assert of a pool: its head and its snapshot with the given share of nodes not closed."""
    nodes = max(1, round(fleet.nodes / fleet.pools))
    entries = [
        Entry(
            scope="node", subject=f"gpu-{i:05d}", state="OPEN", version=(1, 1, i), tx="0" * 32, opened_ms=1, not_after_ms=30_001
        )
        for i in range(math.ceil(nodes * fleet.open_ratio))
    ]
    head, snapshot = build(
        fleet="fleet", pool="pool", version=(1, 1, len(entries)), entries=entries, n_eligible=nodes, cap=nodes, mode="enforce",
        issued_ms=1,
    )  # fmt: skip
    return float(len(encode(head)) + len(snapshot))
