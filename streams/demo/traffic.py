"""The simulated fleet, live: a thread that advances it with the clock and sends its telemetry to Kafka."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from schemas.telemetry import Event
from streams.simulate.faults import FAULTS, Fault
from streams.simulate.fleet import Fleet
from streams.simulate.output import EventProducer, Pacer

__all__ = ["LiveFleet"]

_STEP_S = 0.05
_HISTORY_S = 60.0


class LiveFleet:
    """A context manager: traffic flows inside `with`.

    Args:
        fleet: The simulation; its time 0 becomes now.
        producer: Where telemetry goes.
        ended: Called with what happened in each step, as a serving host would know of requests that ended.
    """

    def __init__(self, fleet: Fleet, producer: EventProducer, ended: Callable[[list[Event]], None]) -> None:
        self.fleet = fleet
        self._ended = ended
        self._producer = producer
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._sent: deque[tuple[float, dict[str, int]]] = deque()  # (simulation time, requests sent to each node so far)
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def inject(self, name: str, node: str, strength: float | None = None) -> Fault:
        """Start a fault now, without an end."""
        with self._lock:
            fault = Fault(name, node, self.fleet.now_s, float("inf"), FAULTS[name].strength if strength is None else strength)
            self.fleet.inject(fault)
            return fault

    def remove(self, fault: Fault) -> None:
        """End a fault now."""
        with self._lock:
            self.fleet.end(fault)

    def sent(self, node: str, last_s: float) -> tuple[int, int]:
        """Requests routed to `node`, and to all nodes, in the last seconds."""
        with self._lock:
            if not self._sent:
                return 0, 0
            _, before = next(((t, s) for t, s in self._sent if t >= self.fleet.now_s - last_s), self._sent[-1])
            now = self.fleet.sent
            return now[node] - before[node], sum(now.values()) - sum(before.values())

    def check(self) -> None:
        """Raises what the thread died of, if it did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        pacer = Pacer(1.0)
        until_s = 0.0
        try:
            while not self._stop.is_set():
                until_s += _STEP_S
                pacer.sleep_until(until_s)
                with self._lock:
                    events = self.fleet.advance(until_s)
                    self._remember()
                self._ended(events)
                self._producer.send(events)
        except Exception as exc:  # the one supervised place: `check` raises it in the main thread
            self._error = exc

    def _remember(self) -> None:
        now_s = self.fleet.now_s
        if not self._sent or now_s - self._sent[-1][0] >= 0.25:
            self._sent.append((now_s, dict(self.fleet.sent)))
        while self._sent[0][0] < now_s - _HISTORY_S:
            self._sent.popleft()

    def __enter__(self) -> LiveFleet:
        self.fleet.start_s = float(round(time.time(), 3))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
