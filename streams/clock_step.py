"""Ends a process whose wall clock was set back, so that its supervisor starts it again.

librdkafka waits until moments of the wall clock (`cnd_timedwait`, confluentinc/librdkafka#2145). A wait that was under way when
the clock is set back by two hours lasts two hours longer, unless something arrives: a quiet consumer sends no heartbeats, and
SIGTERM does not reach its thread inside the library. Nothing outside can end such a wait, so the process ends at once, like one
that was killed: nothing is lost by that, and the next one takes over. A clock that is set forward ends waits early, which does no
harm; a clock that is slewed does not step.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import structlog

__all__ = ["StepBack", "end_when_set_back"]

_HARMLESS_S = 2.0  # a wait may last so much longer: heartbeats are late by less than a session
_LOOK_S = 0.5
_APART_S = 0.2

log = structlog.get_logger(__name__)


class StepBack:
    """Compares the wall clock with one that nobody sets. Call `look` about twice a second.

    Args:
        wall_s: Unix seconds.
        clock_s: Monotonic seconds.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._wall_s, self._clock_s = wall_s, clock_s
        self._lead_s = self._lead()

    def look(self) -> float | None:
        """By how many seconds the wall clock was set back since the last look; None for less than 2 s, or forward."""
        before, self._lead_s = self._lead_s, self._lead()
        step_s = before - self._lead_s
        return step_s if step_s >= _HARMLESS_S else None

    def _lead(self) -> float:
        """Wall clock minus the other one, both read in one moment: a process that is paused in between has to read again."""
        while True:
            began_s, wall_s, ended_s = self._clock_s(), self._wall_s(), self._clock_s()
            if ended_s - began_s <= _APART_S:
                return wall_s - ended_s


def end_when_set_back(
    step: StepBack | None = None, end: Callable[[int], object] = os._exit, stop: threading.Event | None = None
) -> threading.Thread:
    """Look from a thread of its own until the clock is set back; then say so and end the process with code 1."""
    step, stop = step or StepBack(), stop or threading.Event()

    def watch() -> None:
        while not stop.wait(_LOOK_S):
            if (step_s := step.look()) is not None:
                log.error(
                    "the wall clock was set back: the Kafka client may wait that much longer, so this process ends",
                    set_back_s=round(step_s, 1),
                    do="let a supervisor start it again; slew clocks, do not set them",
                )
                end(1)
                return

    thread = threading.Thread(target=watch, name="slodrift-clock", daemon=True)
    thread.start()
    return thread
