"""After an absence of the framer no topic may run ahead of another."""

import time

import pytest
from confluent_kafka import Producer
from framer_site import Site, Wait, node_event, request_event

from schemas.frame import EventFrame, decode_frame
from streams.framer_align import Aligner


def worst_lag_s(site: Site) -> float:
    """How far the event time of any row lies behind the newest one before it in its partition, seconds."""
    newest: dict[int, float] = {}
    worst = 0.0
    for message in sorted(site.read(site.frames), key=lambda m: (m.partition(), m.offset())):
        frame = decode_frame(message.value())
        times = [e.ts for e in frame.events] if isinstance(frame, EventFrame) else (frame.batch.ts_ns / 1e9).tolist()
        worst = max(worst, newest.get(message.partition(), 0.0) - min(times))
        newest[message.partition()] = max(newest.get(message.partition(), 0.0), *times)
    return worst


@pytest.mark.parametrize("aligned", [True, False])
def test_after_ten_minutes_away_no_topic_runs_ahead(
    site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    """Requests are many and node states few, so that one read holds all of these and little of those."""
    # On a busy machine a source may be silent for longer than the patience of a framer in service.
    made = Aligner(patience_s=60.0) if aligned else Aligner(bound_ms=1 << 40)
    monkeypatch.setattr("streams.framer.Aligner", lambda: made)
    producer, n, span_s = Producer({**site.client(), "linger.ms": 5}), 24_000, 600.0
    start_s = time.time() - span_s
    for i in range(n):
        ts = start_s + span_s * i / n
        events = [(site.sources[0], request_event(i, ts=ts, pool="p", node=f"n{i % 3}"))]
        if i % 40 == 0:
            events.append((site.sources[1], node_event(i, ts=ts, pool="p")))
        for topic, event in events:
            producer.produce(topic, event, partition=0, timestamp=round(ts * 1000))
        producer.poll(0)
    assert producer.flush(20) == 0
    with site.running():
        wait_until(site.all_committed, "everything to be framed and committed", 60)
    assert (worst_lag_s(site) < 5.0) == aligned
