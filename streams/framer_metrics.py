"""What the framer counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

__all__ = ["FramerMetrics"]


class FramerMetrics:
    """Counters and gauges of one framer, in `registry`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"slodrift_framer_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"slodrift_framer_{name}", text, registry=registry)

        self.events = counter("events_total", "Messages read from the telemetry topics.", "topic")
        self.duplicates = counter("duplicates_total", "Requests seen before (request_id).")
        self.rejected = counter("rejected_total", "Events refused; their bytes are in the dead letters.", "reason")
        self.frames = counter("frames_total", "Frames sent.")
        self.frame_bytes = counter("frame_bytes_total", "Bytes of the frames sent.")
        self.crashes = counter("crashes_total", "Batches that the decoder did not survive: a bug, please report it.")
        self.commits = counter("commits_total", "Offset commits by result.", "result")
        self.partitions = gauge("partitions", "Source partitions this framer owns.")
        self.lag_events = gauge("lag_events", "Messages in the owned partitions that were not read yet.")
        self.away = gauge("kafka_away", "1 while no broker answers.")
