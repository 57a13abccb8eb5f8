"""The framer against a broker: the mock cluster and a real Kafka."""

import json
from collections import Counter

from framer_site import RUBBISH, Site, Wait, letters, node_event, request_event, requests_seen
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from schemas.frame import EventFrame, decode_frame
from schemas.telemetry_auth import Authenticator
from streams.framer_metrics import FramerMetrics


def test_events_become_frames_and_rubbish_dead_letters(site: Site, wait_until: Wait) -> None:
    metrics = FramerMetrics(CollectorRegistry())
    site.send(site.sources[0], [request_event(i) for i in range(2000)] + RUBBISH)
    site.send(site.sources[1], [node_event(i) for i in range(50)])
    with site.running(metrics):
        wait_until(site.all_committed, "everything to be framed and committed", 30)
    assert requests_seen(site) == Counter(range(2000))
    events = [e for m in site.read(site.frames) if isinstance(f := decode_frame(m.value()), EventFrame) for e in f.events]
    assert sorted(e.running for e in events) == list(range(50))
    found = letters(site)
    assert sorted(letter.raw for letter in found) == sorted(line[:65536] for line in RUBBISH)
    by_offset = {(m.topic(), m.partition(), m.offset()): m.value() for m in site.read(site.sources[0])}
    for letter in found:
        source = by_offset[letter.topic, letter.partition, letter.offset]
        assert letter.raw == source[:65536]
        assert letter.size_bytes == len(source)
        assert letter.timestamp_ms > 0
        assert letter.stage == "framer"
    assert {letter.reason for letter in found} >= {"unknown_kind", "negative", "bad_json", "too_large"} - {"negative"}
    assert metrics.events.labels(site.sources[0])._value.get() == 2000 + len(RUBBISH)
    assert sum(s.value for m in metrics.rejected.collect() for s in m.samples if s.name.endswith("_total")) == len(RUBBISH)


def test_events_that_are_not_authentic_are_dead_letters_and_frames_are_sealed(site: Site, wait_until: Wait) -> None:
    site.settings = site.settings.model_copy(update={"telemetry_keys": SecretStr(bytes(32).hex())})
    auth = Authenticator([bytes(32)])
    honest = [auth.writer(f"node/{json.loads(e)['node']}").seal_event(e) for e in map(request_event, range(200))]
    forged = [request_event(1000), auth.writer("node/somebody").seal_event(request_event(1001)), b" " + honest[0]]
    site.send(site.sources[0], honest + forged)
    with site.running():
        wait_until(site.all_committed, "everything to be framed and committed", 30)
    assert requests_seen(site) == Counter(range(200))
    assert Counter(letter.reason for letter in letters(site)) == {"no_mac": 1, "bad_mac": 1, "not_its_own": 1}
    assert {letter.raw for letter in letters(site)} == set(forged)
    assert [auth.frame_fault(m.value()) for m in site.read(site.frames)] == [None] * len(site.read(site.frames))
