"""State machine over many breakers under caps: the safety invariants hold for any sequence of evidence, probes and silence.

I2 never more away than the cap allows at the open; I3 caps and freezes hold back nothing but opens; I4 every open and
half-open has an end, also when nothing is heard; I6 probes are counted while half-open alone; I7 least times and the flap
latch; I8 back-off never shrinks within a bad spell and is bounded; I14 without evidence nothing opens.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from detectors.breaker import CLOSED_STATES, MOVES, BreakerRecord, may_trip, move, not_after_s, step
from detectors.caps import CapState, after_open, may_open, open_limit, step_freeze, velocity_limit
from schemas.policy import Breaker as Rules
from schemas.policy import Caps

RULES, CAPS = Rules(), Caps()
GRACE_S = 20.0
TICK_S = 5.0


class Pool(RuleBasedStateMachine):
    @initialize(n=st.integers(0, 60))
    def start(self, n: int) -> None:
        self.n = n
        self.t_s = 1_000_000.0
        self.records = {f"n{i}": BreakerRecord(subject=f"n{i}") for i in range(n)}
        self.caps = CapState()
        self.opens: dict[str, list[float]] = {}
        self.closes: dict[str, float] = {}
        self.spell: dict[str, list[float]] = {}
        self.limit_at_open = 0

    def away(self) -> int:
        return sum(r.state not in CLOSED_STATES for r in self.records.values())

    def commit(self, name: str, cause: str) -> None:
        before = self.records[name]
        after = move(before, cause, self.t_s, RULES, grace_s=GRACE_S)  # type: ignore[arg-type]
        assert MOVES[before.state, cause] == after.state  # type: ignore[index]
        self.records[name] = after
        if after.state == "OPEN":
            assert after.until_s is not None
            length = after.until_s - self.t_s
            assert 30 <= length <= RULES.open_max_s
            end = not_after_s(after, RULES, GRACE_S)
            assert end is not None
            assert self.t_s < end <= self.t_s + 300  # I4
            if cause == "trip":
                recent = [t for t in self.opens.get(name, []) if self.t_s - t < RULES.flap_window_s]
                assert after.latched == (len(recent) >= RULES.max_opens)  # I7
                assert name not in self.closes or self.t_s - self.closes[name] >= RULES.min_closed_s  # I7
                if name in self.closes and self.t_s - self.closes[name] >= RULES.reset_after_s:
                    self.spell[name] = []
                self.opens.setdefault(name, []).append(self.t_s)
            if not after.latched:
                spell = self.spell.setdefault(name, [])
                assert not spell or length >= spell[-1] / 1.1 - 1e-6  # I8, up to jitter
                spell.append(length)
        if after.state == "CLOSED":
            self.closes[name] = self.t_s
        if before.state == "OPEN":
            assert before.since_s is not None
            assert self.t_s - before.since_s >= RULES.open_s  # I7

    @rule(
        bad=st.sets(st.integers(0, 59), max_size=12), good_probes=st.integers(0, 16), bad_probes=st.integers(0, 3),
        silent=st.integers(0, 20), ticks=st.integers(1, 12),
    )  # fmt: skip
    def time_passes(self, bad: set[int], good_probes: int, bad_probes: int, silent: int, ticks: int) -> None:
        for _ in range(ticks):
            self.t_s += TICK_S
            before = dict(self.records)
            n_fresh = max(0, self.n - silent)
            for name, record in before.items():
                stepped, cause = step(record, self.t_s, good_probes, bad_probes, RULES)
                if record.state != "HALF_OPEN":
                    assert stepped == record  # I6
                self.records[name] = stepped
                if record.until_s is not None and self.t_s >= record.until_s:
                    assert cause is not None  # I3, I4: whatever is frozen, time ends it
                if cause is not None:
                    self.commit(name, cause)
            wanted = [f"n{i}" for i in sorted(bad) if i < self.n]
            self.caps = step_freeze(self.caps, self.t_s, n_fresh, len(wanted), n_fresh, self.n, CAPS)
            opened = 0
            for name in wanted:
                if not may_trip(self.records[name], self.t_s, RULES):
                    continue
                if may_open(self.caps, self.t_s, n_fresh, self.away(), CAPS):
                    continue
                assert self.caps.frozen_since_s is None
                self.commit(name, "trip")
                self.caps = after_open(self.caps, self.t_s)
                opened += 1
                assert self.away() <= open_limit(n_fresh, CAPS)  # I2, counted after the action
            assert opened <= velocity_limit(n_fresh, CAPS)
            if not wanted:
                tripped = [n for n, r in self.records.items() if before[n].state == "CLOSED" and r.state == "OPEN"]
                assert not tripped  # I14

    @rule(i=st.integers(0, 59), cause=st.sampled_from(["disable", "release"]))
    def operator(self, i: int, cause: str) -> None:
        name = f"n{i}"
        if i < self.n and (self.records[name].state, cause) in MOVES and self.records[name].state != "OPEN":
            self.commit(name, cause)

    @invariant()
    def every_restriction_ends(self) -> None:
        for record in getattr(self, "records", {}).values():
            if record.state in ("OPEN", "HALF_OPEN"):
                assert record.until_s is not None
                assert record.since_s is not None
                assert record.until_s <= record.since_s + 300

    def teardown(self) -> None:
        """Nothing is heard any more and every probe succeeds: all breakers close."""
        for _ in range(150):
            self.t_s = getattr(self, "t_s", 0.0) + TICK_S
            for name, record in list(getattr(self, "records", {}).items()):
                self.records[name], cause = step(record, self.t_s, 5, 0, RULES)
                if cause is not None:
                    self.records[name] = move(self.records[name], cause, self.t_s, RULES, grace_s=GRACE_S)
        assert all(r.state in CLOSED_STATES for r in getattr(self, "records", {}).values())


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
