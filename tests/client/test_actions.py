"""What a host does with each action: shed by key, fallback once, degrade; and what it refuses at most."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from slodrift_client import BreakerClient, Limits
from slodrift_client.asgi import header_subjects
from slodrift_client.checks import MAX_SUBJECTS, check
from slodrift_client.gate import Gate
from slodrift_client.refusals import LEAST, WINDOW_S, Refusals
from slodrift_client.retries import RetryBudget
from slodrift_client.subjects import PROMPT_CLASSES, SESSION_BUCKETS, covering, kind_of

from schemas import scopes
from schemas.contract import Entry, build, decode_snapshot, encode
from schemas.results import Decision
from sinks.projection import Projection

NOW_MS = 1_800_000_000_000
CLASS = "request:adapter:lora-2"
RNG = random.Random(1)


class Host:
    """A gate with states put in as a reader would."""

    def __init__(self, **fields: Any) -> None:
        self.now = 0.0
        self.gate = Gate("f", ["p"], clock=lambda: self.now, rng=random.Random(1), **fields)
        self.seq = 0

    def write(self, *entries: Entry, mode: Any = "enforce", n_eligible: int = 100) -> Host:
        self.seq += 1
        head, raw = build(
            fleet="f", pool="p", version=(1, 1, self.seq), entries=entries, n_eligible=n_eligible, cap=10, mode=mode,
            issued_ms=NOW_MS,
        )  # fmt: skip
        self.gate._views["p"].offer(encode(head), raw, self.now)
        self.gate._rebuild()
        return self


def entry(subject: str = CLASS, **fields: Any) -> Entry:
    return Entry(**{
        "scope": scopes.scope_of(subject), "subject": subject, "state": "OPEN", "version": (1, 1, 1), "tx": "t",
        "opened_ms": NOW_MS, "not_after_ms": NOW_MS + 300_000, "action": "shed", **fields,
    })  # fmt: skip


def test_host_and_judge_name_subjects_alike() -> None:
    assert (PROMPT_CLASSES, SESSION_BUCKETS) == (scopes.PROMPT_CLASSES, scopes.SESSION_BUCKETS)
    for name in ("lora-2", "a b,c", "\u00fc\u4e2d", "x" * 500, "request:tenant:x", "%2C", "/:@+=._-~", "'\"<>\\"):
        assert covering(adapter=name, pool=False) == [scopes.class_subject("adapter", name)]
        assert covering(tenant=name, pool=False) == [scopes.class_subject("tenant", name)]
        assert covering(session=name, pool=False) == [scopes.session_subject(name)]
        for subject in covering(adapter=name, tenant=name, session=name):
            assert scopes.subject_fault(subject) == ""
            assert "," not in subject
            assert len(subject) <= 256
    for tokens in (-1, 0, 255, 256, 4095, 4096, 16383, 16384, 10**7):
        assert covering(prompt_tokens=tokens) == [scopes.prompt_subject(tokens), scopes.POOL_SUBJECT]
    assert covering(pool=False) == []
    assert [kind_of(s) for s in ("gpu-1", "session:3", CLASS, "pool:", "http://x")] == [
        "",
        "session",
        "request:adapter",
        "pool",
        "",
    ]


def test_a_key_is_shed_everywhere_or_nowhere_and_the_ratio_holds() -> None:
    hosts = [Host().write(entry(admit_ratio=0.3)) for _ in range(3)]
    keys = [f"session-{i}" for i in range(4000)]
    answers = [[host.gate.passes(CLASS, None, key) for key in keys] for host in hosts]
    assert answers[0] == answers[1] == answers[2] == [hosts[0].gate.passes(CLASS, None, key) for key in keys]
    assert 0.27 < sum(answers[0]) / len(keys) < 0.33
    again = Host().write(entry(admit_ratio=0.3, opened_ms=NOW_MS + 1))
    assert [again.gate.passes(CLASS, None, key) for key in keys] != answers[0], "another opening sheds others"
    more = Host().write(entry(admit_ratio=0.6))
    assert all(more.gate.passes(CLASS, None, key) for key, served in zip(keys, answers[0], strict=True) if served)


def test_traffic_comes_back_to_a_ramping_node_and_whoever_had_it_keeps_it() -> None:
    host = Host()
    had: set[str] = set()
    for ratio in (0.1, 0.5):
        host.write(entry("n1", state="HALF_OPEN", admit_ratio=ratio, ramping=True))
        served = {key for key in map(str, range(4000)) if host.gate.allow("n1", key=key)}
        assert had <= served
        assert abs(len(served) / 4000 - ratio) < 0.03
        assert not host.gate.probe("n1")  # what goes there tells enough
        had = served
    host.now = 59.0  # nothing is heard any more
    assert host.gate.decide("n1").state == "HALF_OPEN"
    host.now = 400.0
    assert host.gate.allow("n1", key="x")


def test_a_client_that_knows_no_ramp_admits_the_same_share() -> None:
    new, old = Host(), Host()
    new.write(entry("n1", state="HALF_OPEN", admit_ratio=0.1, ramping=True))
    old.write(entry("n1", state="HALF_OPEN", admit_ratio=0.1))
    assert all(new.gate.allow("n1", key=str(i)) == old.gate.allow("n1", key=str(i)) for i in range(1000))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_without_a_key_requests_take_turns(ratio: float) -> None:
    host = Host(limits=Limits(max_refused_ratio=1.0)).write(entry("gpu-1", admit_ratio=ratio))
    assert sum(host.gate.allow("gpu-1") for _ in range(1000)) == round(1000 * ratio)


def test_decide_says_action_ratio_and_what_becomes_of_a_key() -> None:
    host = Host().write(entry(admit_ratio=0.4, action="fallback", fallback="chat-8b/eu/l4"))
    decision = host.gate.decide(CLASS)
    assert (decision.action, decision.admit_ratio, decision.fallback, decision.allowed) == (
        "fallback",
        0.4,
        "chat-8b/eu/l4",
        False,
    )
    for i in range(50):
        assert host.gate.decide(CLASS, key=f"k{i}").allowed is host.gate.passes(CLASS, None, f"k{i}")
    assert Host().write(entry(admit_ratio=1.0)).gate.decide(CLASS).allowed


@pytest.mark.parametrize(
    ("mode", "state", "profile"),
    [("enforce", "OPEN", "short"), ("advise", "OPEN", None), ("shadow", "OPEN", None), ("enforce", "HALF_OPEN", None)],
)
def test_degraded_requests_go_under_a_profile(mode: str, state: str, profile: str | None) -> None:
    host = Host().write(entry("pool:", action="degrade", profile="short", state=state), mode=mode)
    assert host.gate.allow("pool:")
    assert host.gate.decide("pool:").profile == profile
    answer = check(host.gate, ["gpu-1", "pool:"], None, RNG)
    assert answer.allowed
    assert dict(answer.headers).get("x-slodrift-profile") == profile


def test_a_fallback_is_named_once() -> None:
    host = Host().write(entry(action="fallback", fallback="chat-8b/eu/l4"))
    first = check(host.gate, [CLASS], None, RNG)
    second = check(host.gate, [CLASS], None, RNG, hopped=True)
    assert (first.allowed, second.allowed) == (False, False)
    assert dict(first.headers)["x-slodrift-fallback"] == "chat-8b/eu/l4"
    assert dict(first.headers)["x-slodrift-scope"] == "request"
    assert dict(first.headers)["x-slodrift-version"] == "1-1-1"
    assert "x-slodrift-fallback" not in dict(second.headers)


def by_check(host: Host, subjects: list[str], key: str) -> bool:
    return check(host.gate, subjects, None, RNG, key=key).allowed


def by_allow(host: Host, subjects: list[str], key: str) -> bool:
    return all(host.gate.allow(subject, key=key) for subject in subjects)


@pytest.mark.parametrize("ask", [by_check, by_allow])
def test_a_host_refuses_at_most_15_percent_in_any_10_s(ask: Callable[[Host, list[str], str], bool]) -> None:
    """Two classes with 30 % of the traffic each, one with 5 %; the older ones are obeyed first."""
    host = Host().write(
        entry("request:tenant:a", version=(1, 1, 1)),
        entry("request:tenant:b", version=(1, 1, 5)),
        entry("request:tenant:c", version=(1, 1, 3)),
    )
    rng, refused, asked, tenants = random.Random(7), [], [], []
    for i in range(6000):
        host.now = i / 100
        tenant = rng.choices("abcd", [0.05, 0.3, 0.05, 0.6])[0]
        served = ask(host, covering(session=f"s{i}", tenant=tenant, prompt_tokens=100), f"r{i}")
        assert served or tenant != "d"
        asked.append(host.now)
        if not served:
            refused.append(host.now)
            tenants.append(tenant)
    for end in range(10, 60):
        window = [t for t in refused if end - WINDOW_S < t <= end]
        assert len(window) <= max(LEAST, 0.15 * 1000) + LEAST, end
    assert refused, "it obeys as far as it may"
    settled = [t for t, at in zip(tenants, refused, strict=True) if at > 20]
    assert settled.count("a") > 0.9 * 0.05 * 4000, "the oldest opens are obeyed in full"
    assert settled.count("c") > 0.85 * 0.05 * 4000
    assert settled.count("b") == 0, "the newest would take it too far"


def test_small_numbers_are_no_share() -> None:
    host = Host().write(entry("session:7"))
    answers = [check(host.gate, ["session:7"], None, RNG).allowed for _ in range(LEAST + 3)]
    assert answers == [False] * LEAST + [True] * 3
    host.now = 2 * WINDOW_S + 0.3
    assert not check(host.gate, ["session:7"], None, RNG).allowed


def test_a_tenth_of_the_requests_is_told_of_a_fallback_and_no_more() -> None:
    host = Host()
    host.write(entry("n1", action="fallback", fallback="chat-8b/eu/l4"))
    for second in range(30):
        host.now = float(second)
        host.write(entry("n1", action="fallback", fallback="chat-8b/eu/l4"))
        answers = [check(host.gate, ["n1" if i % 2 else "n2"], None, RNG) for i in range(100)]
        refused = [dict(a.headers) for a in answers if not a.allowed]
        assert len(refused) == 50  # what is refused does not depend on the budget
        assert all(1 <= int(headers["retry-after"]) <= 5 for headers in refused)
        told = sum("x-slodrift-fallback" in headers for headers in refused)
        assert told <= (10 if second else 12)
        assert second < 12 or told >= 8
    denied = host.gate.status().pools["p"].retries_denied
    assert 30 * 50 - 30 * 10 - 20 <= denied <= 30 * 50 - 30 * 8
    assert [RetryBudget(0.1).take(0.0) for _ in range(1)] == [True]
    few = RetryBudget(0.1)
    assert [few.take(0.0) for _ in range(7)] == [True] * LEAST + [False] * 2
    assert few.take(10.0)  # the window is over


def test_nodes_and_orders_are_not_bounded_here_and_nodes_use_the_bound_up() -> None:
    host = Host().write(entry("gpu-1", action="eject"), entry(CLASS, state="FORCED_OPEN", latched=True))
    for _ in range(100):
        assert not check(host.gate, ["gpu-1"], None, RNG).allowed
        assert not check(host.gate, [CLASS], None, RNG).allowed
    nodes = [entry(f"gpu-{i}", action="eject") for i in range(10)]
    host = Host().write(*nodes, entry(CLASS))
    assert host.gate._refusals["p"].most == pytest.approx(0.05)


def test_a_claimed_population_does_not_make_the_nodes_that_are_away_few() -> None:
    nodes = [entry(f"gpu-{i}", action="eject") for i in range(4)]
    host = Host(pool_sizes={"p": 40}).write(*nodes, entry(CLASS), n_eligible=100_000)
    assert host.gate._refusals["p"].most == pytest.approx(0.15 - 4 / 44)


def test_nothing_is_counted_while_no_class_is_open() -> None:
    host = Host().write(entry("gpu-1", action="eject"))
    assert type(host.gate._blocked) is dict
    assert check(host.gate, ["gpu-2", *covering(session="s")], None, RNG).allowed
    assert host.gate._refusals == {}
    host.write(entry("gpu-1", action="eject"), entry(CLASS))
    assert type(host.gate._blocked) is not dict
    host.write()
    assert type(host.gate._blocked) is dict


def test_odd_questions_are_allowed_while_counting() -> None:
    host = Host().write(entry())
    for subject in (None, 3, [], ("p", "q"), "", "x" * 10_000):
        assert host.gate.allow(subject)  # type: ignore[arg-type]
    assert host.gate.allow(CLASS, pool="no such pool")


def test_refusals_forget() -> None:
    refusals = Refusals(0.5)
    for i in range(100):
        refusals.asked(i / 10)
    assert [refusals.may_refuse(9.95, "s", (1, 1, 1)) for _ in range(60)].count(True) == 50
    assert refusals.overruled == 10
    assert refusals.may_refuse(40.0, "s", (1, 1, 1))


def test_refusals_of_the_last_ten_seconds_count_and_older_ones_do_not() -> None:
    refusals = Refusals(0.1)

    def refused(now: float, subject: str, version: tuple[int, int, int]) -> int:
        for _ in range(100):
            refusals.asked(now)
        return sum(refusals.may_refuse(now, subject, version) for _ in range(15))

    assert [refused(now, "newer", (1, 1, 9)) for now in (0.0, 5.0)] == [10, 5]  # 15 + 15 are wanted, 20 may be
    assert refused(10.0, "older", (1, 1, 1)) == 15  # of 20; what was refused at 0 s is over, what was at 5 s is not
    assert refused(14.0, "older", (1, 1, 1)) == 10  # of 30


def test_a_decision_reaches_the_host_with_its_action() -> None:
    decision = Decision(
        t=1000.0, pool="p", scope="request", subject=CLASS, state="OPEN", version=(1, 1, 9), tx="t", action="fallback",
        admit_ratio=0.2, fallback="chat-8b/eu/l4", mode="enforce", not_after=1040.0,
    )  # fmt: skip
    state = Projection()
    state.apply(decision, clock_s=1000.0, now_ms=NOW_MS)
    state.apply(
        Decision(t=1000.0, pool="p", scope="pool", subject="pool:", state="OPEN", version=(1, 1, 10), tx="u", action="degrade",
                 admit_ratio=1.0, profile="short", mode="enforce", not_after=1040.0),
        clock_s=1000.0, now_ms=NOW_MS,
    )  # fmt: skip
    host = Host().write(*state.entries)
    assert decode_snapshot(encode_snapshot(state.entries)).count == 2
    assert host.gate.decide(CLASS).fallback == "chat-8b/eu/l4"
    assert host.gate.decide("pool:").profile == "short"


def encode_snapshot(entries: list[Entry]) -> bytes:
    return build(fleet="f", pool="p", version=(1, 1, 1), entries=entries, n_eligible=9, cap=1, mode="enforce", issued_ms=NOW_MS)[
        1
    ]


def test_a_gateway_says_what_covers_a_request_in_plain_headers() -> None:
    def subjects(**headers: str) -> list[str]:
        raw = [(f"x-slodrift-{name.replace('_', '-')}".encode(), value.encode()) for name, value in headers.items()]
        return header_subjects({"headers": raw})

    assert subjects() == subjects(session="-", tenant="", prompt_tokens="many") == []
    assert subjects(subject="gpu-1") == ["gpu-1", "pool:"]
    assert subjects(subject="gpu-1", session="s-9", adapter="lora-2", tenant="t-4", prompt_tokens="812") == [
        "gpu-1", *covering(session="s-9", adapter="lora-2", tenant="t-4", prompt_tokens=812),
    ]  # fmt: skip
    assert len(subjects(subject=",".join(f"n{i}" for i in range(99)), session="s")) == MAX_SUBJECTS + 2


def test_a_dry_run_without_redis_knows_all_scopes_and_no_bounds() -> None:
    client = BreakerClient.offline({"session:7": "OPEN", CLASS: "OPEN", "gpu-1": "OPEN"})
    assert not any(client.allow(subject) for _ in range(50) for subject in ("session:7", CLASS, "gpu-1"))
    assert [client.decide(s).scope for s in ("session:7", CLASS, "gpu-1")] == ["session", "request", "node"]
    client.set("pool:", "OPEN", action="degrade", profile="short")
    assert (client.allow("pool:"), client.decide("pool:").profile, client.decide("pool:").scope) == (True, "short", "pool")
