"""What a serving host is answered."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from slodrift_client import BreakerClient, Decision, Limits
from slodrift_client.gate import Gate
from slodrift_client.probes import ProbeSlots, chosen

from schemas.contract import Entry, Probe, build, encode

NOW_MS = 1_800_000_000_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Written:
    """A gate with states put in as a reader would."""

    def __init__(self, pools: tuple[str, ...] = ("p",), **fields: Any) -> None:
        self.clock = Clock()
        self.gate = Gate("f", pools, clock=self.clock, rng=random.Random(1), **fields)
        self.seq = 0

    def write(self, *entries: Entry, pool: str = "p", mode: Any = "enforce", n_eligible: int = 100) -> None:
        self.seq += 1
        head, raw = build(
            fleet="f",
            pool=pool,
            version=(1, 1, self.seq),
            entries=entries,
            n_eligible=n_eligible,
            cap=10,
            mode=mode,
            issued_ms=NOW_MS,
        )
        self.gate._views[pool].offer(encode(head), raw, self.clock.now)
        self.gate._rebuild()
        self.gate._report()


def entry(subject: str = "n1", **fields: Any) -> Entry:
    return Entry(**{
        "scope": "node", "subject": subject, "state": "OPEN", "version": (1, 1, 1), "tx": "t", "opened_ms": NOW_MS,
        "not_after_ms": NOW_MS + 30_000, **fields,
    })  # fmt: skip


def test_unknown_is_allowed() -> None:
    written = Written()
    assert written.gate.allow("n1")
    assert written.gate.decide("n1") == Decision(pool="p", subject="n1")
    written.write(entry("n1"))
    assert written.gate.allow("n2")
    assert written.gate.allow("n1", pool="no such pool")


@pytest.mark.parametrize(("mode", "allowed"), [("shadow", True), ("advise", True), ("enforce", False)])
def test_only_enforce_refuses_and_decide_shows_the_rest(mode: str, allowed: bool) -> None:
    written = Written()
    written.write(entry(reason="slow"), mode=mode)
    assert written.gate.allow("n1") is allowed
    decision = written.gate.decide("n1")
    assert (decision.state, decision.allowed, decision.mode, decision.reason) == ("OPEN", allowed, mode, "slow")
    assert (decision.version, decision.source, decision.ends_in_s) == ((1, 1, 1), "fresh", 30.0)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, False), ({"state": "HALF_OPEN"}, False), ({"state": "FORCED_OPEN", "latched": True}, False),
        ({"state": "DISABLED", "latched": True}, True), ({"action": "fallback", "fallback": "small"}, False),
        ({"action": "degrade"}, True), ({"action": "none"}, True), ({"action": "shed", "admit_ratio": 0.0}, False),
        ({"action": "shed", "admit_ratio": 1.0}, True),
    ],
)  # fmt: skip
def test_states_and_actions(fields: dict[str, Any], allowed: bool) -> None:
    written = Written()
    written.write(entry(**fields))
    assert written.gate.allow("n1") is allowed
    assert written.gate.decide("n1").allowed is allowed
    assert written.gate.decide("n1").fallback == fields.get("fallback")


def test_shedding_admits_the_ratio() -> None:
    written = Written()
    written.write(entry(action="shed", admit_ratio=0.3))
    admitted = sum(written.gate.allow("n1") for _ in range(10_000))
    assert 2700 < admitted < 3300


@pytest.mark.parametrize("nonsense", [None, 5, [], {}, ("p", "n1", "x"), object()])
def test_what_is_no_name_is_allowed_and_raises_nothing(nonsense: Any) -> None:
    written = Written()
    written.write(entry())
    assert written.gate.allow(nonsense) is True
    assert written.gate.allow("n1", pool=nonsense) in (True, False)


def test_blocked_subject_is_free_after_its_end_though_nobody_reads_any_more() -> None:
    written = Written()
    written.write(entry())
    assert not written.gate.allow("n1")
    written.clock.now = 200.0
    assert written.gate.allow("n1")
    assert written.gate.decide("n1").state == "CLOSED"
    assert written.gate.status().degraded


def test_panic_obeys_nothing_and_says_so() -> None:
    written = Written()
    written.write(*(entry(f"n{i}") for i in range(10)))
    assert not written.gate.allow("n1")
    written.write(*(entry(f"n{i}") for i in range(10)), n_eligible=30)
    assert written.gate.allow("n1")
    status = written.gate.status()
    assert status.degraded
    assert status.pools["p"].panic
    assert (status.pools["p"].n_nonclosed, status.pools["p"].n_blocked) == (10, 0)


class TestPools:
    def test_each_pool_has_its_own_nodes(self) -> None:
        written = Written(("p", "q"))
        written.write(entry("n1"), pool="p")
        assert not written.gate.allow("n1", pool="p")
        assert written.gate.allow("n1", pool="q")
        assert written.gate.decide("n1", pool="p").state == "OPEN"

    def test_single_pool_may_be_named_or_not(self) -> None:
        written = Written()
        written.write(entry())
        assert not written.gate.allow("n1")
        assert not written.gate.allow("n1", pool="p")
        assert not written.gate.allow("n1", "p")

    def test_question_without_a_pool_is_allowed_counted_and_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        written = Written(("p", "q"))
        written.write(entry("n1"), pool="p")
        assert written.gate.allow("n1")
        assert written.gate.allow("n1")
        assert written.gate.status().ambiguous == 2
        assert [r.message for r in caplog.records] == ["allow() was asked without a pool, but this client follows 2: pass pool="]

    @pytest.mark.parametrize("pools", [[], ["p", "p"], "p"])
    def test_pools_that_make_no_sense_are_an_error(self, pools: Any) -> None:
        with pytest.raises(ValueError, match="pools is a list"):
            Gate("f", pools)


class TestChanges:
    def test_each_change_is_told_once(self) -> None:
        written = Written()
        told: list[tuple[str, str]] = []
        written.gate.on_change(lambda d: told.append((d.subject, d.state)))
        written.write(entry("n1"))
        written.write(entry("n1"), entry("n2"))
        written.write(entry("n1", state="HALF_OPEN"), entry("n2"))
        written.write(entry("n2"))
        assert told == [("n1", "OPEN"), ("n2", "OPEN"), ("n1", "HALF_OPEN"), ("n1", "CLOSED")]

    def test_end_of_a_stale_state_is_told(self) -> None:
        written = Written()
        told: list[str] = []
        written.gate.on_change(lambda d: told.append(f"{d.state} {d.source}"))
        written.write(entry())
        for now in (10.0, 30.0, 61.0, 62.0):
            written.clock.now = now
            written.gate._report()
        assert told[0] == "OPEN fresh"
        assert told[-1] == "CLOSED stale"

    def test_callback_that_raises_is_counted(self) -> None:
        written = Written()
        told: list[Decision] = []
        written.gate.on_change(lambda d: 1 / 0)  # type: ignore[arg-type, return-value]
        written.gate.on_change(told.append)
        written.write(entry())
        assert written.gate.status().callback_errors == 1
        assert len(told) == 1


class TestProbes:
    def half_open(self, **fields: Any) -> Written:
        written = Written(**fields)
        written.write(entry(state="HALF_OPEN", probe=Probe(hosts=2, per_s=1.0, timeout_ms=5000)))
        return written

    def test_one_at_a_time_and_one_a_second(self) -> None:
        written = self.half_open()
        with written.gate.probe("n1") as first:
            assert first
            written.clock.now = 2.0
            with written.gate.probe("n1") as second:
                assert not second
        with written.gate.probe("n1") as third:
            assert third
        written.clock.now = 2.5
        assert not written.gate.probe("n1")
        written.clock.now = 3.0
        assert written.gate.probe("n1")

    def test_slot_comes_back_when_the_request_raises(self) -> None:
        written = self.half_open()
        with pytest.raises(ZeroDivisionError), written.gate.probe("n1"):
            1 / 0  # noqa: B018
        written.clock.now = 1.0
        assert written.gate.probe("n1")

    def test_slot_of_a_request_that_hangs_comes_back_after_the_timeout(self) -> None:
        written = self.half_open()
        hanging = written.gate.probe("n1")
        written.clock.now = 4.9
        assert not written.gate.probe("n1")
        written.clock.now = 5.0
        successor = written.gate.probe("n1")
        assert successor
        hanging.release()  # late: the slot is not its own any more
        written.clock.now = 7.0
        assert not written.gate.probe("n1")
        successor.release()
        assert written.gate.probe("n1")

    @pytest.mark.parametrize("state", ["OPEN", "FORCED_OPEN", "DISABLED"])
    def test_only_half_open_subjects_are_probed(self, state: Any) -> None:
        written = Written()
        assert not written.gate.probe("n1")
        written.write(entry(state=state, latched=True))
        assert not written.gate.probe("n1")
        assert not written.gate.probe("n2")
        assert not written.gate.probe("n1", pool="no such pool")

    def test_no_probe_where_ordinary_requests_go(self) -> None:
        written = Written()
        written.write(entry(state="HALF_OPEN"), mode="advise")
        assert written.gate.allow("n1")
        assert not written.gate.probe("n1")

    def test_chosen_hosts_alone_probe(self) -> None:
        hosts = [f"h{i}" for i in range(10)]
        granted = [h for h in hosts if self.half_open(host=h, hosts=hosts).gate.probe("n1")]
        assert len(granted) == 2

    def test_choice_moves_with_the_subject_and_the_version(self) -> None:
        hosts = [f"h{i}" for i in range(30)]
        picks = {
            (subject, seq): tuple(h for h in hosts if chosen(h, hosts, subject, (1, 1, seq), 3))
            for subject in ("n1", "n2", "n3") for seq in range(5)
        }  # fmt: skip
        assert all(len(pick) == 3 for pick in picks.values())
        assert len(set(picks.values())) > 10

    def test_slots_return_to_none(self) -> None:
        slots = ProbeSlots()
        for i in range(100):
            with slots.ask(("p", f"n{i}"), 0.0, per_s=1, timeout_s=5):
                pass
        assert slots.in_flight(0.0) == 0
        assert len(slots._next_at) == 100
        slots.forget([("p", "n1")])
        assert list(slots._next_at) == [("p", "n1")]

    def test_threads_share_one_slot(self) -> None:
        slots = ProbeSlots()
        granted: list[bool] = []
        barrier = threading.Barrier(8)

        def ask() -> None:
            barrier.wait(10)
            granted.append(bool(slots.ask(("p", "n"), 0.0, per_s=1, timeout_s=5)))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(granted) == [False] * 7 + [True]


class TestOffline:
    def test_answers_from_what_was_set(self) -> None:
        with BreakerClient.offline({"gpu-017": "OPEN"}) as client:
            told: list[str] = []
            client.on_change(lambda d: told.append(d.state))
            assert not client.allow("gpu-017")
            assert client.allow("gpu-018")
            client.set("gpu-017", "HALF_OPEN")
            with client.probe("gpu-017") as lease:
                assert lease
            client.set("gpu-017", "CLOSED")
            assert client.allow("gpu-017")
            client.set("gpu-018", "OPEN", action="fallback", fallback="small", reason="test")
            assert client.decide("gpu-018").fallback == "small"
            assert told == ["HALF_OPEN", "CLOSED", "OPEN"]
            assert not client.status().degraded
            assert client.wait(0)

    def test_never_grows_old_and_has_no_caps(self) -> None:
        client = BreakerClient.offline({f"n{i}": "OPEN" for i in range(50)}, pool="p")
        assert not any(client.allow(f"n{i}", pool="p") for i in range(50))
        assert client.decide("n1").source == "fresh"
        assert client.decide("n1").age_s == 0.0


def test_limits_are_a_parameter() -> None:
    written = Written(limits=Limits(max_open_ratio=0.02))
    written.write(entry("n1"), entry("n2"))
    assert written.gate._views["p"].held.keys() == {"n1", "n2"}
