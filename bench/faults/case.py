"""One row of the table: a story that is played while something breaks, and the checks that close every row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.faults.host_processes import HostLog
from bench.faults.site import REQUESTS, Failed, Site
from bench.faults.workload import LENGTH_S, Answer, Event, answer_of, story

__all__ = ["Action", "Case", "Result", "play"]

Action = tuple[float, Callable[[], Any]]
"""Seconds since the play began, and what is done then."""


@dataclass
class Case:
    """What a fault has of its own.

    Attributes:
        pool: Its pool.
        control: The story without the fault; its decisions must come out. None: the fault changes the decisions.
        messages: What is sent: (time of the story, topic, message).
        n_valid: Distinct valid requests among them, at their times; what ClickHouse must hold of them.
        copies: Messages among them that are a second copy of another.
        loose: Requests that the judge takes and does not put into windows (late ones).
        figures: What was measured, for the table.
        began_s: Unix seconds.
        mark: Where the log stood.
        answer: Of the control, once it was computed.
        without: Frames with these bytes are no part of the recomputation: the judge is made to refuse them.
        expect_dead: Events of this pool in the dead letters; None for whatever the messages give.
        host_logs: What hosts in processes of their own saw (`bench/faults/host_processes.py`).
        hosts_may_differ: Hosts refuse what the log says, by caps of their own.
        after: Puts things back in order, behind the closing checks.
    """

    pool: str
    control: list[Event] | None = None
    messages: list[tuple[float, str, bytes]] = field(default_factory=list)
    valid_s: list[float] = field(default_factory=list)
    copies: int = 0
    loose: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.time)
    mark: Any = None
    answer: Answer | None = None
    without: bytes = b""
    expect_dead: int | None = None
    after: Callable[[], Any] | None = None
    host_logs: Sequence[HostLog] = ()
    hosts_may_differ: bool = False

    @classmethod
    def plain(cls, site: Site, pool: str, **how: Any) -> Case:
        """The story as it is."""
        events = story(pool, **how)
        case = cls(pool, events)
        case.send(events)
        case.begin(site)
        return case

    def send(self, events: Sequence[Event]) -> None:
        """Add valid requests."""
        self.messages += [(t, REQUESTS, raw) for t, raw in events]
        self.valid_s += [t for t, _ in events]

    def begin(self, site: Site) -> None:
        """Remember where the log stands."""
        self.mark, self.began_s = site.tail.mark(), time.time()

    def known_answer(self, site: Site) -> Answer | None:
        """Of the control."""
        if self.answer is None and self.control is not None:
            self.answer = answer_of(self.control, site.policy)
        return self.answer


@dataclass
class Result:
    """A row of the table."""

    fault: str
    injected: str
    expected: str
    measured: str
    holds: bool
    seconds: float
    group: str = ""


def play(site: Site, cases: Sequence[Case], over_s: float = 6.0, actions: Sequence[Action] = ()) -> None:
    """Send the messages of all cases in step, and do the actions at their times.

    Raises:
        Failed: An action failed, or Kafka did not take everything.
    """
    merged = sorted(((t, i, topic, raw, case.pool) for case in cases for i, (t, topic, raw) in enumerate(case.messages)))
    began, pause = time.monotonic(), threading.Event()

    def send() -> None:
        for n, (t, _, topic, raw, pool) in enumerate(merged):
            if n % 50 == 0 and (early_s := t * over_s / LENGTH_S - (time.monotonic() - began)) > 0.005:
                pause.wait(early_s)
            site.produce(topic, raw, pool)

    sender = threading.Thread(target=send, name="telemetry")
    sender.start()
    try:
        for at_s, action in sorted(actions, key=lambda a: a[0]):
            pause.wait(max(0.0, at_s - (time.monotonic() - began)))
            action()
    finally:
        sender.join()
    if site.producer.flush(60):
        raise Failed("Kafka did not take all telemetry within 60 s")
