"""Telemetry events: round trip through JSON, unknown is not zero, and times keep a microsecond."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.outcome import COUNTS_AGAINST_NODE, OUTCOME_CODES, Outcome
from schemas.telemetry import DeployEvent, Event, GpuEvent, NodeEvent, RequestEvent, to_ns
from schemas.topics import TOPICS, partition_of

decoder = msgspec.json.Decoder(Event)
names = st.text(min_size=1, max_size=20)
ratios = st.none() | st.floats(0, 1)
counts = st.none() | st.integers(0, 2**40)
times = st.floats(0, 4e9)

events = st.one_of(
    st.builds(RequestEvent, ts=times, pool=names, node=names, outcome=st.sampled_from(sorted(OUTCOME_CODES)), ttft_s=ratios,
              prompt_tokens=counts, probe=st.none() | st.booleans(), adapter=st.none() | names),
    st.builds(NodeEvent, ts=times, pool=names, node=names, running=counts, kv_cache_usage_ratio=ratios),
    st.builds(GpuEvent, ts=times, pool=names, node=names, gpu=names, sm_util_ratio=ratios, xid=counts),
    st.builds(DeployEvent, ts=times, pool=names, node=st.none() | names, what=st.text(max_size=20)),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(events)
def test_round_trip(event: RequestEvent | NodeEvent | GpuEvent | DeployEvent) -> None:
    assert decoder.decode(msgspec.json.encode(event)) == event


def test_unknown_fields_are_ignored_and_missing_ones_unknown() -> None:
    event = decoder.decode(b'{"kind":"request","ts":1,"pool":"p","node":"n","outcome":"ok","colour":"red"}')
    assert isinstance(event, RequestEvent)
    assert event.ttft_s is None
    assert event.prompt_tokens is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4_000_000_000_000_000))
def test_times_keep_their_microsecond(us: int) -> None:
    assert to_ns(us / 1e6) == us * 1000


def test_only_four_outcomes_count_against_a_node() -> None:
    assert {o.name for o in COUNTS_AGAINST_NODE} == {"SERVER_ERROR", "MIDSTREAM_ERROR", "EMPTY", "TIMEOUT"}
    assert {o.name.lower(): o.value for o in Outcome} == OUTCOME_CODES
    assert [o.value for o in Outcome] == list(range(8)), "codes are part of the frame format"


def test_partition_is_by_crc32() -> None:
    assert partition_of("123456789", 2**32) == 0xCBF43926, "the check value of CRC-32"
    assert [partition_of(p, 6) for p in ("llama3-70b/eu/h100", "p", "größer")] == [3, 1, 0], (
        "pools must not move when code changes"
    )


def test_topic_names_are_unique() -> None:
    assert len({t.name for t in TOPICS}) == len(TOPICS)
