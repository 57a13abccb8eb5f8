"""What a live worker needs beyond the judge itself: Faust, fetching and producing, its memory, and Redis commands.

Frames are written to the mock cluster and judged by one `slodrift worker judge`, some megabytes at a time. CPU is its process's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import redis
from confluent_kafka import Producer

from bench.scale_case import BLOCK, Size
from bench.scale_load import LoadShape, frames
from bench.stand import Counters, cpu_s, open_stand, rss_bytes
from bench.yardstick import yardstick_s
from schemas.topics import FRAMES, partition_of
from streams.kafka import client_config
from streams.plan.model import Counts
from streams.worker.child import WorkerChild

__all__ = ["Live", "counts_of", "measure_live"]

TICKS = 5 * BLOCK
_DEADLINE_S = 120.0
_REDIS_S = 8.0
_AHEAD_BYTES = 2_000_000  # the mock cluster keeps 5 MB of a partition: what is not judged by then is gone


@dataclass(frozen=True)
class Live:
    """One run: CPU seconds of all frames, and of a yardstick; resident bytes before and after; FCALLs of a second and pool."""

    frames: int
    cpu_s: float
    yardstick_s: float
    base_bytes: int
    rss_bytes: int
    redis_per_pool_s: float


def counts_of(size: Size) -> Counts:
    """Counts of a second of event time, ticks of 5 s."""
    nodes = size.nodes * size.pools
    return Counts(
        frames=nodes * size.split / 5.0, requests=nodes * size.requests / 5.0, samples=nodes * size.requests * size.slis / 5.0,
        pool_ticks=size.pools / 5.0, node_ticks=nodes / 5.0, window_rows=nodes * (size.slis + 2) / 5.0, nodes=nodes,
        pools=size.pools,
    )  # fmt: skip


def measure_live(size: Size, seed: int, *, partitions: int = 8) -> Live:
    """Judge `TICKS` ticks of `size`."""
    pools = [f"pool-{i}" for i in range(size.pools)]
    with open_stand(kafka=False, partitions=partitions) as stand:
        made = [
            (tick, pool, raw)
            for pool in pools
            for tick, raw in frames(_shape(pool, size), range(TICKS), seed, size.split)
        ]  # fmt: skip
        made.sort(key=lambda frame: frame[0])
        worker, counters = stand.judge()
        worker.start()
        try:
            assert worker.process is not None
            pid = worker.process.pid
            base, began = rss_bytes(pid), cpu_s(pid)
            producer = Producer({**client_config(stand.settings), "linger.ms": 20, "batch.size": 500_000})
            sent, ahead_bytes, yards_s = 0, 0, [yardstick_s()]
            for _, pool, raw in made:
                if ahead_bytes > _AHEAD_BYTES:
                    _wait(producer, counters, worker, sent)
                    yards_s.append(yardstick_s())
                    ahead_bytes = 0
                sent, ahead_bytes = sent + 1, ahead_bytes + len(raw)
                producer.produce(FRAMES.name, raw, partition=partition_of(pool, partitions))
                producer.poll(0)
            _wait(producer, counters, worker, sent)
            used = cpu_s(pid) - began
            rss = rss_bytes(pid)
            with redis.Redis.from_url(stand.redis_url) as client:
                before, at = _calls(client), time.monotonic()
                time.sleep(_REDIS_S)
                rate = (_calls(client) - before) / (time.monotonic() - at) / size.pools
        finally:
            worker.terminate()
    return Live(len(made), used, median(yards_s), base, rss, rate)


def _wait(producer: Producer, counters: Counters, worker: WorkerChild, sent: int) -> None:
    """Until everything that was sent is judged."""
    producer.flush(60)
    end = time.monotonic() + _DEADLINE_S
    while counters.read().get("slodrift_frames_total", 0.0) < sent:
        if time.monotonic() > end:
            raise TimeoutError(f"the worker did not judge {sent:,} frames: {worker.said[-2000:]}")
        time.sleep(0.2)  # reading the counters is work for the worker


def _shape(pool: str, size: Size) -> LoadShape:
    return LoadShape(pool, size.nodes, size.requests, size.slis, size.adapters)


def _calls(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))  # type: ignore[union-attr]
