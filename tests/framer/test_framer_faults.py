"""The framer and what goes wrong: kills, brokers away, hand-overs, bugs, slow output."""

import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog
from confluent_kafka import KafkaError
from framer_site import COMMIT_S, PARTITIONS, Site, Wait, letters, request_event, requests_seen
from prometheus_client import CollectorRegistry

from schemas.frame import EventFrame, decode_frame
from streams.embedded import EmbeddedStack
from streams.framer_metrics import FramerMetrics
from streams.framing import EventFramer, Framed

PRODUCE = 0  # key of the request in the protocol


def test_nothing_is_lost_or_doubled_when_the_framer_is_killed(site: Site, wait_until: Wait) -> None:
    total, killed = 12_000, 0
    process = site.process()
    try:
        for part in range(6):
            lo, hi = part * total // 6, (part + 1) * total // 6
            site.send(site.sources[0], [request_event(i) for i in range(lo, hi)] + [b"rubbish %d" % part])
            before = sum(site.ends([site.frames]).values())
            wait_until(lambda n=before: sum(site.ends([site.frames]).values()) > n, "frames of this part", 40)
            if part % 2 == 0:
                process.send_signal(signal.SIGKILL)
                process.wait(10)
                killed += 1
                process = site.process()
        wait_until(site.all_committed, "the last framer to commit everything", 40)
    finally:
        process.kill()
        process.wait(10)
    assert killed == 3
    assert requests_seen(site) == Counter(range(total))
    assert {letter.raw for letter in letters(site)} == {b"rubbish %d" % part for part in range(6)}


def test_a_broker_that_goes_away_is_waited_for(site: Site, wait_until: Wait) -> None:
    with structlog.testing.capture_logs() as said, site.running():
        site.send(site.sources[0], [request_event(i) for i in range(500)])
        wait_until(site.all_committed, "the first half", 30)
        site.down()
        wait_until(lambda: [s for s in said if s["event"].startswith("Kafka is away")], "the framer to notice", 20)
        site.up()
        site.send(site.sources[0], [request_event(i) for i in range(500, 1000)])
        wait_until(site.all_committed, "the second half", 40)
        wait_until(lambda: [s for s in said if s["event"] == "Kafka is back"], "the framer to notice", 20)
    assert requests_seen(site) == Counter(range(1000))
    events = [s["event"].partition(",")[0] for s in said if s["event"].startswith("Kafka is")]
    assert events == ["Kafka is away", "Kafka is back"]


def test_two_framers_share_the_work_and_hand_it_over_without_doubles(site: Site, wait_until: Wait) -> None:
    one, two = FramerMetrics(CollectorRegistry()), FramerMetrics(CollectorRegistry())
    with site.running(one):
        wait_until(lambda: one.partitions._value.get() == 2 * PARTITIONS, "the first to own everything", 20)
        with site.running(two):
            wait_until(
                lambda: one.partitions._value.get() == two.partitions._value.get() == PARTITIONS, "the second to get its half", 40
            )
            site.send(site.sources[0], [request_event(i) for i in range(1000)])
            wait_until(site.all_committed, "both to commit", 30)
        wait_until(lambda: one.partitions._value.get() == 2 * PARTITIONS, "the first to take over", 40)
        site.send(site.sources[0], [request_event(i) for i in range(1000, 2000)])
        wait_until(site.all_committed, "the first to commit", 30)
    rows = Counter(
        t for m in site.read(site.frames) for f in [decode_frame(m.value())] if not isinstance(f, EventFrame)
        for t in f.batch.prompt_tokens.tolist()
    )  # fmt: skip
    assert rows == Counter(range(2000))  # without dropping anything


def test_an_event_that_breaks_the_decoder_is_a_dead_letter(site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EventFramer.feed

    def feed(self: EventFramer, raw: list[bytes], offsets: list[int] | None = None) -> Framed:
        framed = real(self, raw, offsets)  # remembers the identifiers first, as the worst bug would
        if any(b"poison" in line for line in raw):
            raise IndexError("a bug")
        return framed

    monkeypatch.setattr(EventFramer, "feed", feed)
    events = [request_event(i) for i in range(100)]
    events[50] = request_event(50, tenant="poison")
    metrics = FramerMetrics(CollectorRegistry())
    with site.running(metrics):
        site.send(site.sources[0], events)
        wait_until(site.all_committed, "the batch", 30)
    assert requests_seen(site) == Counter(i for i in range(100) if i != 50)
    (letter,) = letters(site)
    assert (letter.raw, letter.reason) == (events[50], "internal_error")
    assert metrics.crashes._value.get() == 1


def test_an_event_that_breaks_the_cutting_is_a_dead_letter(site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    from streams import framer as module

    real = module.cut_frames

    def cut(framed: Framed, topic: str, partition: int) -> Iterator[tuple[str, bytes]]:
        for rows in framed.pools.values():
            if "poison" in rows.batch.tenants:
                raise OverflowError("a bug behind the decoder")
        yield from real(framed, topic, partition)

    monkeypatch.setattr(module, "cut_frames", cut)
    events = [request_event(i) for i in range(100)]
    events[50] = request_event(50, tenant="poison")
    with site.running(FramerMetrics(CollectorRegistry())):
        site.send(site.sources[0], events)
        wait_until(site.all_committed, "the batch", 30)
    assert requests_seen(site) == Counter(i for i in range(100) if i != 50)
    (letter,) = letters(site)
    assert (letter.raw, letter.reason) == (events[50], "internal_error")


def test_output_waits_while_the_broker_is_slow_and_the_buffer_is_full(
    site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams import framer as module

    real = module.make_producer
    monkeypatch.setattr(module, "make_producer", lambda *a: real(*a, queue_buffering_max_messages=3))
    site.send(site.sources[0], [request_event(i) for i in range(3000)])
    with site.running():
        wait_until(site.all_committed, "everything through a narrow door", 30)
    assert requests_seen(site) == Counter(range(3000))


@pytest.mark.parametrize("site", [pytest.param("mock", marks=pytest.mark.embedded)], indirect=True)
def test_no_offset_is_committed_before_its_output_is_acknowledged(
    site: Site, embedded_stack: EmbeddedStack, wait_until: Wait
) -> None:
    metrics = FramerMetrics(CollectorRegistry())
    site.send(site.sources[0], [request_event(i) for i in range(300)] + [b"rubbish"])
    embedded_stack.push_errors(PRODUCE, [KafkaError.REQUEST_TIMED_OUT] * 20_000)
    try:
        with site.running(metrics):
            wait_until(lambda: metrics.events.labels(site.sources[0])._value.get() == 301, "everything to be read", 20)
            end = time.monotonic() + 5 * COMMIT_S
            while time.monotonic() < end:
                assert set(site.committed().values()) == {0}
            embedded_stack.clear_errors(PRODUCE)
            wait_until(site.all_committed, "the offsets, at last", 30)
    finally:
        embedded_stack.clear_errors(PRODUCE)
    assert requests_seen(site) == Counter(range(300))
    assert [letter.raw for letter in letters(site)] == [b"rubbish"]
