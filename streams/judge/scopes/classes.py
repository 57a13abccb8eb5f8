"""Request classes of a pool (prompt length, adapter, tenant): which of them fails where its nodes serve others well.

All of this must hold before a class opens:

* *evidence*: for `breach_ticks` ticks in a row, a calibrated alarm of its error ratio or of its ratio of failures (errors, or
  requests beyond a contractual SLO);
* *hurt*: as many failures, and as large a share, as a node needs;
* *own fault*: `own_fault_ratio` times what the other requests on the same nodes lead one to expect, on two nodes where two
  serve it. Where it is late rather than failing, it must also be slower than its size explains, and the others on its nodes
  must not be: a class of long prompts that misses its SLO because prompts are long is a mix, not a fault. A class by prompt
  length opens for errors alone: what size explains is known too roughly to shed everybody who sends long prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.bank import SeriesBank
from detectors.class_fault import Contrast, contrast, own_fault, own_shift
from detectors.error_rate import ErrorRates
from detectors.residuals import STEP_NATS, class_residuals
from detectors.weights import count, picked
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from schemas.scopes import MAX_CLASSES, PROMPT_CLASSES, ClassKind, class_subject, prompt_subject
from streams.judge.scopes.covered import NO_PROMPT, Covered
from streams.judge.scopes.names import Names
from streams.judge.scopes.window import ALL, ERRORS, FAILED, MAX_COUNT, MAX_GROUPS, TOTAL, ClassWindow

__all__ = ["ADAPTERS", "KINDS", "NO_TICK", "SEATS", "TENANTS", "ClassCase", "Classes"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEATS = (MAX_CLASSES - len(PROMPT_CLASSES)) // 2
ADAPTERS = slice(len(PROMPT_CLASSES), len(PROMPT_CLASSES) + SEATS)
TENANTS = slice(ADAPTERS.stop, ADAPTERS.stop + SEATS)
KINDS = (slice(0, len(PROMPT_CLASSES)), ADAPTERS, TENANTS)
CLASS_SHIFT_NATS = 0.1  # 10 % slower than its size explains
NO_TICK = Covered.concat([]), np.zeros((3, 0), np.uint8)
_LEAST_TIMED = 5  # latencies before a shift is believed


@dataclass(slots=True)
class ClassCase:
    """What speaks for opening classes at the end of a tick; arrays (MAX_CLASSES,) unless said.

    Attributes:
        counts: Of the window, over all nodes, (3, MAX_CLASSES + 1).
        share: Of the pool's requests.
        errors, failures: Against the others on the same nodes.
        shift: Slower than expected by, nats; the worst SLI with an SLO. `rest_shift`: the same of the others on the same nodes.
        alarm: Evidence in this tick.
        suspect: In alarm, and by its own fault. `wanted`: should be opened.
    """

    counts: Ints
    share: Floats
    errors: Contrast
    failures: Contrast
    shift: Floats
    rest_shift: Floats
    alarm: Bools
    suspect: Bools
    wanted: Bools


class Classes:
    """Request classes of one pool.

    Args:
        policy: Of the pool.

    Attributes:
        adapters, tenants: Names that are classes.
        tick: Requests of the tick that is being closed, and their classes: (3, n), one kind a row, `ALL` for none.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy
        detection = policy.detection
        budget = min((1.0 - slo.objective for slo in policy.slo.values()), default=1.0)
        self.adapters, self.tenants = Names(SEATS), Names(SEATS)
        self.window = ClassWindow(max(1, round(policy.breaker.failure_window_s / policy.tick_s)))
        self.error_rates = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s)
        self.failure_rates = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s, budget)
        self.error_rates.grow(MAX_CLASSES)
        self.failure_rates.grow(MAX_CLASSES)
        self.breach = np.zeros(MAX_CLASSES, np.int64)
        self.silent = np.zeros(MAX_CLASSES, np.int64)  # requests of ticks without a failure, not learnt yet
        self.timed: tuple[Ints, Ints] | None = None  # residual sums and counts by SLI, class and node since suspicion began
        self.slis = [LATENCY_SLIS.index(name) for name in sorted(policy.slo)]
        self.tick = NO_TICK

    def subject(self, index: int) -> str:
        """Subject of a class; "" for a free seat."""
        if index < len(PROMPT_CLASSES):
            return prompt_subject(PROMPT_CLASSES[index])
        if index < TENANTS.start:
            name = self.adapters.seats[index - ADAPTERS.start]
            return class_subject("adapter", name) if name else ""
        name = self.tenants.seats[index - TENANTS.start]
        return class_subject("tenant", name) if name else ""

    def index(self) -> dict[str, int]:
        """Class of each subject."""
        return {subject: i for i in range(MAX_CLASSES) if (subject := self.subject(i))}

    def take(self, t_s: float, covered: Covered, n_nodes: int, bank: SeriesBank, slot: int, away: frozenset[str]) -> None:
        """The requests of a tick, before the bank closes it.

        Args:
            t_s: End of the tick.
            covered: Its requests.
            n_nodes: Seats of nodes.
            bank: That has the same requests.
            slot: Number of the tick.
            away: Subjects that are not closed: they keep their seats.
        """
        self.window.grow(n_nodes)
        classes = np.full((3, len(covered)), ALL, np.uint8)
        classes[0] = np.where(covered.prompt == NO_PROMPT, np.uint8(ALL), covered.prompt)
        used = [0]
        kind: ClassKind
        for row, kind, names, numbers, first in (
            (1, "adapter", self.adapters, covered.adapter, ADAPTERS.start),
            (2, "tenant", self.tenants, covered.tenant, TENANTS.start),
        ):
            if not numbers.any():
                continue
            may_leave = partial(_may_leave, kind, away)
            seat, changed = names.take_seats(t_s, numbers, may_leave, covered.weight)
            self._forget([first + place for place in changed])
            mine = seat[numbers]
            classes[row] = np.where(mine < 0, ALL, first + mine)
            used.append(row)
        self.tick = covered, classes
        groups = self.window.groups
        group = covered.node.astype(np.int32)
        if n_nodes > MAX_GROUPS:
            group %= MAX_GROUPS
        cells = (ALL + 1) * groups
        counts = np.empty((3, ALL + 1, groups), np.int64)
        for at, rows in ((TOTAL, None), (ERRORS, covered.error), (FAILED, covered.failed)):
            if rows is not None and not rows.any():
                counts[at] = 0
                continue
            g, weight = (group, covered.weight) if rows is None else (group[rows], picked(covered.weight, rows))
            flat = np.zeros(cells, np.int64)
            for row in used:  # what is in no class is counted below
                kind_of = (classes[row] if rows is None else classes[row][rows]).astype(np.int32)
                flat += count(kind_of * groups + g, weight, cells)
            counts[at] = flat.reshape(ALL + 1, groups)
            counts[at, ALL] = count(g, weight, groups)
        self.window.add(counts if covered.weight is None else np.minimum(counts, MAX_COUNT))
        self._time(covered, classes, group, bank, slot)

    def judge(self, hold_all: bool, away: frozenset[str]) -> ClassCase:
        """The case of every class at the end of the tick that was taken.

        Args:
            hold_all: The pool has another trouble: learn nothing.
            away: Subjects that are not closed.
        """
        rules, caps, w = self.policy.breaker, self.policy.caps, self.window
        n = w.last
        held = np.array([self.subject(i) in away for i in range(MAX_CLASSES)]) if away else np.zeros(MAX_CLASSES, np.bool_)
        if not n[FAILED, ALL] and self._quiet():
            self.silent += n[TOTAL, :ALL]
            return self._nothing(w.sums.sum(axis=2))
        hold = held | (self.breach > 0) | hold_all
        for rates in (self.error_rates, self.failure_rates):
            rates.requests += np.where(hold, 0, self.silent)
        self.silent[:] = 0
        error_alarm = self.error_rates.update(n[TOTAL, :ALL], n[ERRORS, :ALL], hold)
        failure_alarm = self.failure_rates.update(n[TOTAL, :ALL], n[FAILED, :ALL], hold)
        alarm = error_alarm | failure_alarm
        counts = w.sums.sum(axis=2)
        share = counts[TOTAL, :ALL] / max(int(counts[TOTAL, ALL]), 1)
        if not alarm.any():
            self.breach[:] = 0
            self.timed = None
            return self._nothing(counts)
        all_total = w.sums[TOTAL, ALL]
        errors = contrast(w.sums[TOTAL, :ALL], w.sums[ERRORS, :ALL], all_total, w.sums[ERRORS, ALL])
        failures = contrast(w.sums[TOTAL, :ALL], w.sums[FAILED, :ALL], all_total, w.sums[FAILED, ALL])
        shift, rest = self._shifts()
        with np.errstate(invalid="ignore"):
            calm = ~(rest >= np.maximum(CLASS_SHIFT_NATS, 0.5 * np.nan_to_num(shift)))
            slower = (shift >= CLASS_SHIFT_NATS) & calm
        margin = rules.min_failure_ratio
        fails = error_alarm & own_fault(errors, caps.own_fault_ratio, margin) & calm
        late = failure_alarm & own_fault(failures, caps.own_fault_ratio, margin) & slower
        late[KINDS[0]] = False
        self.breach = np.where(alarm, self.breach + 1, 0)
        lately = w.recent(rules.breach_ticks)[:, :ALL]
        total, failed = counts[TOTAL, :ALL], counts[FAILED, :ALL]
        often = (failed >= margin * total) | ((lately[FAILED] >= margin * lately[TOTAL]) & (lately[TOTAL] >= rules.min_requests))
        hurt = (failed > rules.min_failures) & often & (total >= rules.min_requests)
        suspect = (fails | late) & ~held
        wanted = suspect & hurt & (self.breach >= rules.breach_ticks) & (n[FAILED, :ALL] > 0)
        return ClassCase(counts, share, errors, failures, shift, rest, alarm, suspect, wanted)

    def _quiet(self) -> bool:
        """No class is anywhere near an alarm."""
        return not self.breach.any() and all(rates.log_sr.max() < 0.0 for rates in (self.error_rates, self.failure_rates))

    def _nothing(self, counts: Ints) -> ClassCase:
        """Nothing speaks against any class."""
        none, zero, unknown = np.zeros(MAX_CLASSES, np.bool_), np.zeros(MAX_CLASSES, np.int64), np.full(MAX_CLASSES, np.nan)
        alike = Contrast(zero, zero, np.zeros(MAX_CLASSES), zero, zero)
        share = counts[TOTAL, :ALL] / max(int(counts[TOTAL, ALL]), 1)
        return ClassCase(counts, share, alike, alike, unknown, unknown, none, none, none)

    def answers(self, index: int) -> tuple[int, int]:
        """Good and bad answers of the tick; as many failures as are usual for the class are not held against it."""
        n = self.window.last
        total, failed = int(n[TOTAL, index]), int(n[FAILED, index])
        bad = max(0, failed - int(self.failure_rates.base_ratio()[index] * total))
        return total - bad, bad

    def close(self, index: int) -> None:
        """The breaker of a class closed: its evidence is over."""
        chosen = np.zeros(MAX_CLASSES, np.bool_)
        chosen[index] = True
        for rates in (self.error_rates, self.failure_rates):
            rates.forget(chosen, baseline=False)
        self.breach[index] = 0
        self.window.forget([index])

    def skip(self) -> None:
        """Ticks without events are skipped."""
        self.window.forget()
        self.breach[:] = 0
        self.timed = None

    def _forget(self, classes: list[int]) -> None:
        """Seats changed hands."""
        if classes:
            chosen = np.zeros(MAX_CLASSES, np.bool_)
            chosen[classes] = True
            for rates in (self.error_rates, self.failure_rates):
                rates.forget(chosen, baseline=True)
            self.breach[classes] = 0
            self.silent[classes] = 0
            self.window.forget(classes)
            if self.timed is not None:
                for part in self.timed:
                    part[:, classes] = 0

    def _time(self, covered: Covered, classes: NDArray[np.uint8], group: NDArray[np.int32], bank: SeriesBank, slot: int) -> None:
        """How late each class was, while one of them is under suspicion or about to be: it costs as much as all the rest."""
        rates = (self.error_rates, self.failure_rates)
        if not (self.breach.any() or any((r.log_sr > 0.5 * r.log_threshold).any() for r in rates)):
            return
        groups, ok = self.window.groups, covered.ok
        codes = [np.where(kind < ALL, kind.astype(np.int64) * groups + group, -1)[ok] for kind in classes]
        found = class_residuals(bank, slot, [*codes, (ALL * groups + group)[ok].astype(np.int64)], (ALL + 1) * groups)
        if found is None:
            return
        sums, counts = (part.reshape(len(LATENCY_SLIS), ALL + 1, groups) for part in found)
        if self.timed is None or not self.breach.any():
            self.timed = sums, counts
        else:
            before = [np.pad(part, ((0, 0), (0, 0), (0, groups - part.shape[2]))) for part in self.timed]
            self.timed = before[0] + sums, before[1] + counts

    def _shifts(self) -> tuple[Floats, Floats]:
        """Shift of each class and of the others on its nodes, in the worst SLI with an SLO, nats; NaN where unknown."""
        nothing = np.full(MAX_CLASSES, np.nan)
        if self.timed is None or not self.slis:
            return nothing, nothing.copy()
        sums, counts = np.asarray(self.timed[0] * STEP_NATS, np.float64), self.timed[1]
        mine, others = own_shift(sums[:, :ALL], counts[:, :ALL], sums[:, ALL], counts[:, ALL])
        mine = np.where(counts[:, :ALL].sum(axis=2) >= _LEAST_TIMED, mine, np.nan)[self.slis]
        worst = np.argmax(np.nan_to_num(mine, nan=-np.inf), axis=0)
        at = np.arange(MAX_CLASSES)
        return mine[worst, at], others[self.slis][worst, at]

    def dump(self) -> dict[str, Any]:
        """State for a snapshot, between two ticks."""
        timed = self.timed
        return {
            "adapters": self.adapters.dump(), "tenants": self.tenants.dump(), "window": self.window.dump(),
            "rates": [self.error_rates.dump(), self.failure_rates.dump()], "breach": self.breach.tolist(),
            "silent": self.silent.tolist(),
            "timed": None if timed is None else [timed[0].tobytes(), timed[1].tobytes(), timed[0].shape[2]],
        }  # fmt: skip

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.adapters.load(raw["adapters"])
        self.tenants.load(raw["tenants"])
        self.window.load(raw["window"])
        for rates, state in zip((self.error_rates, self.failure_rates), raw["rates"], strict=True):
            rates.load(state)
        self.breach = np.array(raw["breach"], np.int64)
        self.silent = np.array(raw["silent"], np.int64)
        if raw["timed"] is not None:
            sums, counts, groups = raw["timed"]
            shape = (len(LATENCY_SLIS), ALL + 1, groups)
            self.timed = (
                np.frombuffer(sums, np.int64).reshape(shape).copy(),
                np.frombuffer(counts, np.int64).reshape(shape).copy(),
            )


def _may_leave(kind: ClassKind, away: frozenset[str], name: str) -> bool:
    return class_subject(kind, name) not in away
