"""The judge of one pool: requests and state events in, closed ticks out. No I/O, no clock of its own, no randomness.

The same events give the same results whatever their framing: requests are put into ticks by event time, ticks close when the
pool's clock has passed them by the lateness, and everything that looks at a tick sees its whole content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, count, picked, total
from schemas.batch import RequestBatch
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.telemetry import DeployEvent, GpuEvent, NodeEvent, OverrideEvent, StateEvent, to_ns
from streams.judge.clock import Taken, VoteClock
from streams.judge.events import EventSlots
from streams.judge.refused import MAX_KEPT, Refused, rows_as_json
from streams.judge.registry import UNKNOWN, Registry
from streams.judge.results import TickOutput
from streams.judge.rows import Rows, adapter_keys
from streams.judge.slots import MAX_WAITING_ROWS, Slots
from streams.judge.snapshot import dump_judge, load_judge
from streams.judge.ticker import Ticker
from streams.judge.urgent import Urgent

__all__ = ["PoolJudge"]

QUIET_S = 3600.0
"""After this long without any event, ticks are skipped up to the next one that has some."""


class PoolJudge:
    """State of one pool.

    Args:
        pool: Name.
        policy: Its settings.
        policy_version: Stamped on decisions.
        epoch, generation: First parts of the version of each decision; the epoch is the owner's.

    Attributes:
        rejected: Events refused so far, by reason.
        late: Events that came after their tick was closed, so far.
    """

    def __init__(self, pool: str, policy: PoolPolicy, *, policy_version: str, epoch: int = 0, generation: int = 1) -> None:
        self.pool, self.policy = pool, policy
        self.tick_ns = round(policy.tick_s * 1e9)
        self.rejected: Counter[str] = Counter()
        self.refused: list[Refused] = []
        self.registry = Registry(policy.inventory)
        self.ticker = Ticker(pool, policy, policy_version, epoch, generation, self.registry)
        self.slots = Slots(policy, self.ticker.ingest)
        self.events = EventSlots(self.tick_ns, policy.health)
        lateness_ns = round(policy.lateness_s * 1e9)
        self.silence_ns = round(policy.health.stale_after_s * 1e9) + lateness_ns
        self.row_clock = VoteClock(self.tick_ns, lateness_ns, self.silence_ns)
        self.event_clock = VoteClock(self.tick_ns, lateness_ns, self.silence_ns)
        self.urgent = Urgent(policy.health) if policy.health.immediate else None
        self.next_slot: int | None = None
        self.quiet = 0
        self.waiting: list[Rows] = []
        self._batches: list[RequestBatch] = []
        self._staged: list[StateEvent] = []
        self._adapters: dict[str, int] = {}
        self._out: list[TickOutput] = []
        self._told: Counter[str] = Counter()
        self.inherited: list[Decision] = []

    @property
    def late(self) -> int:
        """Events that came after their tick was closed, so far."""
        return self.rejected["late"]

    @property
    def clock_ns(self) -> int | None:
        """Event time of the pool, Unix ns; None before the first events are believed."""
        return self.row_clock.now_ns

    def requests(self, batch: RequestBatch) -> None:
        """Requests in arrival order, with believable values (`streams.framing.valid_rows`)."""
        if len(batch):
            self._batches.append(batch)

    def event(self, event: StateEvent) -> None:
        """One state event."""
        self._staged.append(event)
        if self.urgent is not None and isinstance(event, GpuEvent | NodeEvent):
            self._urgent(self.urgent, event)

    def advance(self) -> list[TickOutput]:
        """Close every tick that the clock has passed by the lateness."""
        self._absorb()
        return self._take_out()

    def idle(self, now_ns: int) -> list[TickOutput]:
        """Nothing arrives any more, and it is `now_ns`: time goes on without events."""
        self._absorb()
        self._settle(self.row_clock.push(now_ns))
        return self._take_out()

    def finish(self) -> list[TickOutput]:
        """The input ends: close all ticks up to the last event that is believed."""
        self._absorb()
        while (rest := self.row_clock.believe_rest()).released:
            self._settle(rest)
        for last in (self.row_clock.last(), self.event_clock.last()):
            if last is not None:
                self._settle(self.row_clock.push(last))
        self._refuse_waiting()
        if self.row_clock.now_ns is not None:
            self._close_up_to(self.row_clock.now_ns // self.tick_ns + 1)
        if left := self._new_rejects():  # refused after the last tick, or without any
            t_s = (self.row_clock.now_ns or 0) / 1e9
            self._out.append(TickOutput(t_s, self.pool, rejected=left, refused=self._take_refused()))
        return self._take_out()

    def inherit(self, decisions: Iterable[Decision]) -> None:
        """What the decision log says is not closed, for a judge without a snapshot; before anything else."""
        self.inherited = sorted((d for d in decisions if d.state != "CLOSED"), key=lambda d: d.version)

    def snapshot(self) -> bytes:
        """The whole state; call it after `advance`.

        Raises:
            ValueError: If events or results wait that no call of `advance` took yet.
        """
        if self._batches or self._staged or self._out:
            raise ValueError("snapshot() before advance(): events or results would be lost")
        if self.next_slot is not None:
            self.slots.fold(self.next_slot, self.registry.seat, self.ticker.breakers.away)
        return dump_judge(self)

    @classmethod
    def restore(cls, raw: bytes, policy: PoolPolicy, *, policy_version: str, epoch: int = 0, generation: int = 1) -> PoolJudge:
        """The judge that `snapshot` wrote, under an owner of its own epoch.

        Raises:
            ValueError: If the bytes are no snapshot, or were made with ticks of another length.
        """
        return load_judge(raw, lambda pool: cls(pool, policy, policy_version=policy_version, epoch=epoch, generation=generation))

    def _urgent(self, urgent: Urgent, event: GpuEvent | NodeEvent) -> None:
        """Decide at once on a hard fault that `event` proves, in the state after everything before it."""
        ts_ns, number = to_ns(event.ts), self.registry.number(event.node)
        evidence = None if number == UNKNOWN else urgent.look(number, ts_ns, event, self._served_ns)
        if evidence is None:
            return
        self._absorb()
        now_ns, slot = self.row_clock.now_ns, ts_ns // self.tick_ns
        seat = self.registry.seats.get(event.node)
        if seat is None or now_ns is None or self.next_slot is None or slot < self.next_slot:
            return  # late, or too early to know the node
        if ts_ns > now_ns + self.silence_ns:
            return  # a clock that is fast: its tick decides, should it ever come
        decision = self.ticker.open_now(ts_ns / 1e9, seat, evidence)
        if decision is not None:
            # Handed out in the order in which it was decided: behind the last closed tick.
            t_s = self.next_slot * self.tick_ns / 1e9
            self._out.append(TickOutput(t_s, self.pool, decisions=[decision], n_eligible=self.ticker.n_eligible))

    def _served_ns(self, number: int) -> int:
        """Last good answer of a node that has arrived, Unix ns."""
        self._absorb()
        seat = int(self.registry.seat[number])
        closed_s = self.ticker.health.progress_s[seat] if seat >= 0 else np.nan
        last = 0 if np.isnan(closed_s) else round(closed_s * 1e9)
        return max(last, self.slots.served_ns(number, seat))

    def _absorb(self) -> None:
        batches, self._batches = self._batches, []
        staged, self._staged = self._staged, []
        parts = []
        for batch in batches:
            node = self.registry.of_rows(batch.nodes, batch.node)
            scopes = self.ticker.scopes
            adapter_no = scopes.adapters.of_rows(batch.adapters, batch.adapter)
            tenant_no = scopes.tenants.of_rows(batch.tenants, batch.tenant)
            rows = Rows.of_batch(batch, node, adapter_keys(batch, self._adapters), adapter_no, tenant_no)
            known = node != UNKNOWN
            if not known.all():
                self._reject("unknown_node", total(~known, rows.weight))
                rows = rows.take(known)
            parts.append(rows)
        numbers = [self.registry.number(e.node) if e.node is not None else -1 for e in staged]
        n = self.registry.grow()
        if n > len(self.row_clock.high):
            self.row_clock.grow(n)
            self.event_clock.grow(n)
        self._stage_events(staged, numbers)
        if parts:
            self._feed(Rows.concat(parts))
        if self.event_clock.now_ns is not None:
            self._settle(self.row_clock.push(self.event_clock.now_ns - self.silence_ns))
        if self.row_clock.now_ns is not None and (wild := self.events.drop_wild(self.row_clock.now_ns)):
            self._refuse("future", [msgspec.json.encode(event) for event in wild])

    def _stage_events(self, staged: list[StateEvent], numbers: list[int]) -> None:
        """Put state events into their ticks before any tick is closed: a batch may bring them behind later requests."""
        nodes, times = [], []
        for event, number in zip(staged, numbers, strict=True):
            ts_ns = to_ns(event.ts)
            of_pool = isinstance(event, DeployEvent | OverrideEvent)
            if isinstance(event, OverrideEvent):
                if fault := self.ticker.breakers.overrides.fault(event):
                    self._reject(fault, 1)
                    continue
                if self.next_slot is not None:  # an order is never late
                    ts_ns = max(ts_ns, self.next_slot * self.tick_ns)
            if number == UNKNOWN and not of_pool:
                self._reject("unknown_node", 1)
                continue
            if self.next_slot is not None and ts_ns // self.tick_ns < self.next_slot:
                self._reject("late", 1)
                continue
            if not self.events.add(number, ts_ns, event):
                self._refuse("future", [msgspec.json.encode(event)])
                continue
            if not of_pool:
                nodes.append(number)
                times.append(ts_ns)
        node, ts = np.array(nodes, np.uint32), np.array(times, np.int64)
        while len(ts):
            n = self.event_clock.take(node, ts).n
            node, ts = node[n:], ts[n:]

    def _feed(self, rows: Rows) -> None:
        """Requests through the clock into their ticks; ticks are closed on the way, where the clock moves."""
        start = lo = 0  # rows from `start` to `lo` are through the clock and not yet in their ticks
        while lo < len(rows):
            taken = self.row_clock.take(rows.node[lo:], rows.ts_ns[lo:])
            first_open = self.row_clock.first_open_slot()
            plain = taken.late is None and taken.waits is None and not taken.refuted
            if plain and first_open is not None and self.next_slot is not None and first_open <= self.next_slot:
                lo += taken.n
                continue
            self.slots.add(rows.take(slice(start, lo)))
            start = lo = lo + taken.n
            self._sort_in(rows.take(slice(lo - taken.n, lo)), taken)
            if taken.refuted:
                self._refuse_waiting()
            if taken.released:
                rows, start, lo = Rows.concat([*self.waiting, rows.take(slice(lo, None))]), 0, 0
                self.waiting = []
            self._close_up_to(first_open)
        self.slots.add(rows.take(slice(start, lo)))
        self._fold_if_many()

    def _sort_in(self, piece: Rows, taken: Taken) -> None:
        out: NDArray[np.bool_] | None = None
        if taken.late is not None:
            out = taken.late
            self._reject("late", total(out, piece.weight))
            self._blame(piece.node[out], picked(piece.weight, out))
        if taken.waits is not None:
            self.waiting.append(piece.take(taken.waits))
            out = taken.waits if out is None else out | taken.waits
        self.slots.add(piece if out is None else piece.take(~out))
        self._fold_if_many()

    def _fold_if_many(self) -> None:
        if self.slots.n_waiting > MAX_WAITING_ROWS and self.next_slot is not None:
            self.slots.fold(self.next_slot, self.registry.seat, self.ticker.breakers.away)

    def _settle(self, taken: Taken) -> None:
        """The clock was pushed."""
        if taken.refuted:
            self._refuse_waiting()
        if taken.released and self.waiting:  # they are given again under the clock they set
            rows, self.waiting = Rows.concat(self.waiting), []
            self._feed(rows)
        self._close_up_to(self.row_clock.first_open_slot())

    def _refuse_waiting(self) -> None:
        for rows in self.waiting:
            names = list(self.registry.numbers)
            self._refuse("future", list(rows_as_json(self.pool, names, rows.take(slice(0, MAX_KEPT)))), rows.requests)
            self._blame(rows.node, rows.weight)
        self.waiting = []

    def _close_up_to(self, first_open: int | None) -> None:
        if first_open is None:
            return
        if self.next_slot is None:
            self.next_slot = first_open
            self.events.carry_orders(first_open)
        while self.next_slot < first_open:
            slot = self.next_slot
            if self.quiet * self.policy.tick_s >= QUIET_S:
                coming = [s for s in (*self.slots.open, *self.events.open) if s >= slot]
                slot = min([first_open, *coming])
                if slot > self.next_slot:
                    self.ticker.skip()
                    self.next_slot = slot
                    self.quiet = 0
                    continue
            self.quiet = 0 if slot in self.slots.open or slot in self.events.open else self.quiet + 1
            self.next_slot = slot + 1
            out = self._close(slot)
            out.rejected, out.refused = self._new_rejects(), self._take_refused()
            self._out.append(out)

    def _new_rejects(self) -> dict[str, int]:
        new = dict(self.rejected - self._told)
        self._told = self.rejected.copy()
        return new

    def _adopt(self, t_s: float) -> None:
        """Inherited decisions come into force behind their time; a node that nobody heard of yet gets its seat by them."""
        due = [d for d in self.inherited if d.t < t_s]
        self.inherited = [d for d in self.inherited if d.t >= t_s]
        nodes = [(d, number) for d in due if d.scope == "node" and (number := self.registry.number(d.subject)) != UNKNOWN]
        if nodes:
            n = self.registry.grow()
            if n > len(self.row_clock.high):
                self.row_clock.grow(n)
                self.event_clock.grow(n)
            if self.registry.give_seats([number for _, number in nodes]):
                self.ticker.grow(len(self.registry.names))
            for decision, _ in nodes:
                seat, heard_s = self.registry.seats[decision.subject], self.ticker.health.heard_s
                self.ticker.breakers.adopt(seat, decision)
                heard_s[seat] = np.fmax(heard_s[seat], decision.t)  # when it was decided, the node was there
        for decision in due:
            if decision.scope != "node":
                self.ticker.scopes.breakers[decision.scope].adopt(decision)

    def _close(self, slot: int) -> TickOutput:
        registry, ticker = self.registry, self.ticker
        if self.inherited:
            self._adopt((slot + 1) * self.tick_ns / 1e9)
        if not registry.all_seated() and registry.give_seats([*self.slots.numbers_in(slot), *self.events.numbers_in(slot)]):
            ticker.grow(len(registry.names))
        self.events.close(slot, registry.seat, ticker.health, ticker.deploys, ticker.breakers.overrides)
        out = ticker.close(slot, self.slots.close(slot, registry.seat, ticker.breakers.away))
        self.rejected.update(ticker.breakers.overrides.take_refused())
        self.rejected.update(ticker.scopes.refused)
        ticker.scopes.refused.clear()
        return out

    def _blame(self, numbers: NDArray[np.uint32], weight: Weight) -> None:
        """Count refused events for the nodes that sent them."""
        seats = self.registry.seat[numbers]
        self.ticker.refused += count(seats[seats >= 0], picked(weight, seats >= 0), len(self.ticker.refused))

    def _reject(self, reason: str, count: int) -> None:
        self.rejected[reason] += count

    def _refuse(self, reason: str, events: list[bytes], count: int | None = None) -> None:
        """Reject events that are wrong in themselves, and keep them for the dead letters."""
        self._reject(reason, len(events) if count is None else count)
        self.refused += [(reason, event) for event in events[: MAX_KEPT - len(self.refused)]]

    def _take_refused(self) -> list[Refused]:
        refused, self.refused = self.refused, []
        return refused

    def _take_out(self) -> list[TickOutput]:
        out, self._out = self._out, []
        return out
