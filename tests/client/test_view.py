"""What a host believes: order, freshness, decay and caps, on an injected clock."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from slodrift_client.contract import Refused
from slodrift_client.view import Limits, PoolView

from schemas.contract import Entry, build, encode

NOW_MS = 1_800_000_000_000
NAMES = {"node": "n", "session": "session:", "request": "request:tenant:", "pool": "pool:"}


def node(i: int, **fields: Any) -> Entry:
    """Of a node, or of another scope."""
    return Entry(**{
        "scope": "node", "subject": f"{NAMES[fields.get('scope', 'node')]}{i}", "state": "OPEN", "version": (1, 5, i),
        "tx": f"t{i}", "opened_ms": NOW_MS, "not_after_ms": NOW_MS + 30_000, **fields,
    })  # fmt: skip


def pair(version: tuple[int, int, int], entries: list[Entry] | None = None, **fields: Any) -> tuple[bytes, bytes]:
    head, raw = build(**{
        "fleet": "f", "pool": "p", "version": version, "entries": entries or [], "n_eligible": 100, "cap": 10, "mode": "enforce",
        "issued_ms": NOW_MS, **fields,
    })  # fmt: skip
    return encode(head), raw


def new_view(**fields: Any) -> PoolView:
    return PoolView("f", "p", fields.pop("limits", Limits()), rng=random.Random(1), **fields)


def states(view: PoolView, now: float) -> dict[str, str]:
    return {subject: held.state_at(now) for subject, held in view.held.items()}


def reason(view: PoolView, raw: tuple[bytes, bytes], now: float = 0.0) -> str:
    with pytest.raises(Refused) as caught:
        view.offer(*raw, now)
    return caught.value.reason


class TestOrder:
    def test_head_of_a_new_state_asks_for_the_snapshot(self) -> None:
        view = new_view()
        raw = pair((1, 5, 1), [node(1)])
        assert view.offer_head(raw[0], 0.0)
        assert view.head is None
        view.offer(*raw, 0.0)
        assert not view.offer_head(raw[0], 1.0)
        assert not view.offer_head(pair((1, 5, 1), [node(1)], hb=1)[0], 2.0)
        assert view.offer_head(pair((1, 5, 2))[0], 3.0)

    @pytest.mark.parametrize("lower", [((1, 5, 3), 1), ((1, 5, 2), 9), ((1, 4, 9), 9), ((0, 9, 9), 9)])
    def test_going_back_is_refused(self, lower: tuple[tuple[int, int, int], int]) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 3), [node(1)], hb=2), 0.0)
        version, hb = lower
        old = pair(version, [node(2)], hb=hb)
        assert reason(view, old) == "rollback"
        with pytest.raises(Refused, match="rollback"):
            view.offer_head(old[0], 0.0)
        assert states(view, 0.0) == {"n1": "OPEN"}

    def test_two_states_of_one_version_are_a_conflict(self) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 3), [node(1)]), 0.0)
        other = pair((1, 5, 3), [node(2)], hb=1)
        assert reason(view, other) == "conflict"
        with pytest.raises(Refused, match="conflict"):
            view.offer_head(other[0], 0.0)

    @given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=12))
    def test_what_is_believed_never_goes_back(self, offers: list[tuple[int, int, int, int]]) -> None:
        view = new_view()
        highest = (-1, -1, -1, -1)
        for offer in offers:
            raw = pair(offer[:3], [node(i) for i in range(sum(offer[:3]))], hb=offer[3])
            try:
                if view.offer_head(raw[0], 0.0):
                    view.offer(*raw, 0.0)
            except Refused:
                assert offer < highest
            highest = max(highest, offer)
            assert view.head is not None
            assert (*view.head.version, view.head.hb) == highest


class TestAge:
    def test_fresh_late_stale(self) -> None:
        view = new_view()
        assert (view.source(100.0), view.age_s(100.0)) == ("default", float("inf"))
        view.offer(*pair((1, 5, 1)), 100.0)
        assert [view.source(100.0 + age) for age in (0, 3, 3.1, 5, 5.1, 500)] == [
            "fresh",
            "fresh",
            "late",
            "late",
            "stale",
            "stale",
        ]

    def test_only_a_heartbeat_that_advances_makes_it_young(self) -> None:
        view = new_view()
        raw = pair((1, 5, 1))
        view.offer(*raw, 0.0)
        view.offer_head(raw[0], 50.0)  # a frozen head
        view.offer(*raw, 50.0)
        assert view.age_s(50.0) == 50.0
        view.offer_head(pair((1, 5, 1), hb=1)[0], 60.0)
        assert view.age_s(60.0) == 0.0

    def test_refused_state_does_not_make_it_young(self) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1)), 0.0)
        assert reason(view, pair((1, 5, 2), [node(i) for i in range(11)], cap=11), 10.0) == "over_cap"
        assert view.age_s(10.0) == 10.0

    def test_file_is_stale_from_the_start_and_spends_its_age(self) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1), [node(1)]), 0.0, file_age_s=25.0)
        assert view.source(0.0) == "lkg"
        assert states(view, 4.9) == {"n1": "OPEN"}  # 30 s, less 25 in the file
        assert states(view, 5.1)["n1"] != "OPEN"
        view.offer_head(pair((1, 5, 1), [node(1)], hb=1)[0], 6.0)
        assert view.source(6.0) == "fresh"

    def test_what_only_a_file_says_ends_as_if_it_was_stale_already(self) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1), [node(1, not_after_ms=NOW_MS + 300_000)]), 0.0, file_age_s=1.0)
        assert states(view, 54.9) == {"n1": "OPEN"}
        assert states(view, 55.1)["n1"] != "OPEN"


class TestEnds:
    def heard_until(self, view: PoolView, end: int, entries: list[Entry]) -> None:
        for second in range(1, end + 1):
            view.offer_head(pair((1, 5, 1), entries, hb=second)[0], float(second))

    def test_while_fresh_an_entry_ends_at_its_own_end_then_half_open_then_closed(self) -> None:
        view, entries = new_view(), [node(1)]
        view.offer(*pair((1, 5, 1), entries), 0.0)
        self.heard_until(view, 70, entries)
        seen = [states(view, t)["n1"] for t in (29.9, 30.0, 59.9, 60.1)]
        assert seen == ["OPEN", "HALF_OPEN", "HALF_OPEN", "CLOSED"]

    @pytest.mark.parametrize("scope", ["session", "request", "pool"])
    def test_a_stale_class_or_session_ends_like_a_node(self, scope: Any) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1), [node(1, scope=scope, not_after_ms=NOW_MS + 290_000)]), 0.0)
        seen = [[*states(view, now).values()] for now in (59.9, 60.1, 90.1)]
        assert seen == [["OPEN"], ["HALF_OPEN"], ["CLOSED"]]

    def test_stale_ends_60_s_after_the_last_heartbeat(self) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1), [node(1, not_after_ms=NOW_MS + 300_000)]), 0.0)
        assert states(view, 59.9)["n1"] == "OPEN"
        assert states(view, 60.1)["n1"] != "OPEN"
        assert states(view, 90.0)["n1"] == "CLOSED"

    def test_hosts_close_at_different_times(self) -> None:
        closes = set()
        for seed in range(20):
            view = PoolView("f", "p", Limits(), rng=random.Random(seed))
            view.offer(*pair((1, 5, 1), [node(1)]), 0.0)
            closes.add(next(t for t in range(200) if states(view, float(t))["n1"] == "CLOSED"))
        assert len(closes) > 10
        assert min(closes) >= 30
        assert max(closes) <= 60

    def test_latched_entry_is_held_to_its_own_end(self) -> None:
        view = new_view()
        held = [
            node(1, latched=True, on_stale="hold", not_after_ms=NOW_MS + 300_000),
            node(2, latched=True, on_stale="hold", not_after_ms=None, state="FORCED_OPEN"),
        ]
        view.offer(*pair((1, 5, 1), held), 0.0)
        assert states(view, 299.0) == {"n1": "OPEN", "n2": "FORCED_OPEN"}
        assert states(view, 400.0) == {"n1": "CLOSED", "n2": "FORCED_OPEN"}

    def test_judge_that_comes_back_is_obeyed_again(self) -> None:
        view, entries = new_view(), [node(1, not_after_ms=NOW_MS + 300_000)]
        view.offer(*pair((1, 5, 1), entries), 0.0)
        assert states(view, 100.0)["n1"] == "CLOSED"
        view.offer_head(pair((1, 5, 1), entries, hb=1)[0], 100.0)
        assert states(view, 100.0)["n1"] == "OPEN"

    def test_entry_that_stays_keeps_its_end_whatever_the_writers_clock_does(self) -> None:
        view, stays = new_view(), node(1)
        view.offer(*pair((1, 5, 1), [stays]), 0.0)
        view.offer(*pair((1, 5, 2), [stays, node(2, not_after_ms=NOW_MS + 7_230_000)], issued_ms=NOW_MS + 7_200_000), 10.0)
        assert states(view, 29.0) == {"n1": "OPEN", "n2": "OPEN"}
        assert states(view, 31.0)["n1"] != "OPEN"

    def test_what_ended_for_want_of_news_comes_back_only_within_the_cap(self) -> None:
        view, entries = new_view(), [node(i, not_after_ms=NOW_MS + 300_000) for i in range(3)]
        view.offer(*pair((1, 5, 1), entries), 0.0)
        assert set(states(view, 100.0).values()) == {"CLOSED"}
        with pytest.raises(Refused, match="over_cap"):
            view.offer_head(pair((1, 5, 1), entries, hb=1, n_eligible=10)[0], 100.0)
        assert set(states(view, 100.0).values()) == {"CLOSED"}

    @given(st.floats(0, 300), st.floats(0, 1000), st.booleans())
    def test_nothing_unlatched_is_refused_longer_than_its_end_and_the_ramp(self, left_s: float, now: float, half: bool) -> None:
        view = new_view()
        state: Any = "HALF_OPEN" if half else "OPEN"
        view.offer(*pair((1, 5, 1), [node(1, state=state, not_after_ms=NOW_MS + int(left_s * 1000))]), 0.0)
        if now >= min(left_s, 60.0) + 30.001:
            assert states(view, now)["n1"] == "CLOSED"


class TestCaps:
    def test_more_than_the_heads_cap_is_refused(self) -> None:
        assert reason(new_view(), pair((1, 5, 1), [node(1), node(2)], cap=1)) == "over_cap"

    @pytest.mark.parametrize(("n", "allowed"), [(0, 0), (2, 0), (3, 1), (9, 1), (10, 1), (29, 2), (100, 10), (1000, 20)])
    def test_this_hosts_cap_holds_whatever_the_head_says(self, n: int, allowed: int) -> None:
        view = new_view()
        view.offer(*pair((1, 5, 1), [node(i) for i in range(allowed)], n_eligible=n, cap=500), 0.0)
        more = pair((1, 5, 2), [node(i) for i in range(allowed + 1)], n_eligible=n, cap=500)
        assert reason(view, more) == "over_cap"
        assert len(view.held) == allowed

    def test_population_that_claims_more_than_the_host_knows_widens_no_cap(self) -> None:
        view = new_view(pool_size=20)
        assert reason(view, pair((1, 5, 1), [node(i) for i in range(3)], n_eligible=100_000, cap=100)) == "over_cap"
        view.offer(*pair((1, 5, 2), [node(i) for i in range(2)], n_eligible=100_000, cap=100), 0.0)

    def test_cap_that_shrank_delays_no_close(self) -> None:
        view = new_view()
        nodes = [node(i) for i in range(4)]
        view.offer(*pair((1, 5, 1), nodes), 0.0)
        view.offer(*pair((1, 5, 2), nodes[1:], n_eligible=40, cap=1), 0.0)
        assert set(view.held) == {"n1", "n2", "n3"}
        assert reason(view, pair((1, 5, 3), [*nodes[2:], node(9)], n_eligible=40, cap=1)) == "over_cap"

    def test_sessions_classes_and_the_pool_use_no_place_of_a_node_up(self) -> None:
        view = new_view()
        others = [node(50 + i, scope=scope) for i, scope in enumerate(["session", "request", "session", "request", "pool"])]
        view.offer(*pair((1, 5, 1), [node(1), node(2), node(3), *others], n_eligible=30, cap=3), 0.0)
        assert len(view.held) == 8

    @pytest.mark.parametrize("scope", ["node", "session"])
    def test_what_is_disabled_uses_no_cap_up_and_is_no_way_round_it(self, scope: Any) -> None:
        view = new_view()
        off = [node(i, scope=scope, state="DISABLED") for i in range(60)]
        away = [node(70 + i, scope=scope) for i in range(10)]
        view.offer(*pair((1, 5, 1), [*off, *away]), 0.0)
        opened = [node(i, scope=scope) for i in range(60)]
        assert reason(view, pair((1, 5, 2), opened)) == "over_cap"

    def test_latched_nodes_have_a_cap_of_their_own(self) -> None:
        view = new_view()
        latched = [node(i, latched=True) for i in range(20)]
        view.offer(*pair((1, 5, 1), latched), 0.0)
        assert reason(view, pair((1, 5, 2), [*latched, node(21, latched=True)])) == "over_cap"

    @pytest.mark.parametrize("latched", [True, False])
    def test_nodes_that_orders_hold_count_there_too_whatever_else_is_said_of_them(self, latched: bool) -> None:
        view = new_view()
        forced = [node(i, state="FORCED_OPEN", latched=latched) for i in range(15)]
        flapped = [node(20 + i, latched=True) for i in range(5)]
        view.offer(*pair((1, 5, 1), [*forced, *flapped, *[node(40 + i) for i in range(10)]]), 0.0)
        more = node(99, state="FORCED_OPEN", latched=latched)
        assert reason(view, pair((1, 5, 2), [*forced, *flapped, more])) == "over_cap"

    def test_sessions_and_request_classes_are_bounded(self) -> None:
        for scope, allowed in (("session", 51), ("request", 64), ("pool", 1)):
            view = new_view()
            view.offer(*pair((1, 5, 1), [node(i, scope=scope) for i in range(allowed)]), 0.0)
            assert reason(view, pair((1, 5, 2), [node(i, scope=scope) for i in range(allowed + 1)])) == "over_cap"

    def test_panic_when_too_much_of_a_shrunken_pool_is_not_closed(self) -> None:
        view = new_view()
        nodes = [node(i) for i in range(10)]
        view.offer(*pair((1, 5, 1), nodes), 0.0)
        assert not view.panic
        view.offer_head(pair((1, 5, 1), nodes, hb=1, n_eligible=30)[0], 1.0)
        assert view.panic
        view.offer_head(pair((1, 5, 1), nodes, hb=2, n_eligible=40)[0], 2.0)
        assert not view.panic

    def test_higher_limits_are_a_setting(self) -> None:
        view = new_view(limits=Limits(max_open_ratio=0.5, max_open=100, panic_ratio=1.0))
        view.offer(*pair((1, 5, 1), [node(i) for i in range(50)], cap=50), 0.0)
        assert len(view.held) == 50


class Host(RuleBasedStateMachine):
    """Writers old and new, heartbeats, losses and time, in any order: what a host must never do."""

    def __init__(self) -> None:
        super().__init__()
        self.view = new_view()
        self.now = 0.0
        self.order = (-1, -1, -1, -1)
        self.written: dict[tuple[int, int, int], list[Entry]] = {}

    @rule(
        version=st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 5)), hb=st.integers(0, 5),
        nodes=st.sets(st.integers(0, 14), max_size=14), n=st.integers(0, 150), cap=st.integers(0, 14),
    )  # fmt: skip
    def offer(self, version: tuple[int, int, int], hb: int, nodes: set[int], n: int, cap: int) -> None:
        entries = self.written.setdefault(version, [node(i) for i in sorted(nodes)])
        before, order, open_before = dict(self.view.held), self.order, self.not_closed()
        raw = pair(version, entries, hb=hb, n_eligible=n, cap=cap)
        try:
            if self.view.offer_head(raw[0], self.now):
                self.view.offer(*raw, self.now)
        except Refused:
            assert dict(self.view.held) == before
            return
        assert self.view.head is not None
        self.order = (*self.view.head.version, self.view.head.hb)
        assert self.order >= order
        if self.not_closed() - open_before:
            assert len(self.view.held) <= min(cap, 20, 0 if n < 3 else max(1, n // 10))

    def not_closed(self) -> set[str]:
        return {subject for subject, state in states(self.view, self.now).items() if state != "CLOSED"}

    @rule(seconds=st.floats(0.1, 50))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def whole_states_only(self) -> None:
        if self.view.head is not None:
            assert set(self.view.held) == {e.subject for e in self.written[self.view.head.version]}

    @invariant()
    def nothing_stays_open_without_a_judge(self) -> None:
        if self.view.age_s(self.now) > 90.01:
            assert set(states(self.view, self.now).values()) <= {"CLOSED"}


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
