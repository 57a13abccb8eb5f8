"""The simulation: arrivals, a router, engines and faults on one event-time axis; telemetry comes out in time order.

`advance(until)` makes the same events whatever the size of its steps, so a live demo and a file are the same simulation.
Randomness comes from separate streams for arrivals, speeds and faults: injecting a fault does not change the arrivals.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.telemetry import DeployEvent, Event, GpuEvent, NodeEvent, RequestEvent
from streams.simulate.engine import Engine, Job, NodeSpec
from streams.simulate.faults import Fault
from streams.simulate.gpu import gpu_event
from streams.simulate.router import Router
from streams.simulate.workload import Workload

__all__ = ["Fleet", "FleetSpec"]

_FAST_FAILURE_S = 0.004  # a refused or malformed request is answered at once
_SLOWEST = 100.0  # a hung node's front end still answers
_POISON = "s-poison"
_GPU_EVERY = 5  # node samples between two GPU samples


@dataclass(frozen=True)
class FleetSpec:
    """Shape of one simulated pool."""

    pool: str
    nodes: tuple[str, ...]
    node: NodeSpec = field(default_factory=NodeSpec)
    timeout_s: float = 60.0
    """The caller gives up after this long."""
    sample_s: float = 1.0
    """Period of node telemetry and of the speed wobble."""
    lottery_ratio: float = 0.02
    """Standard deviation of the speed between healthy nodes."""
    wobble_ratio: float = 0.02
    """Standard deviation of a node's slow speed changes: AR(1), 0.95 a sample."""
    gpu: bool = True
    """Send GPU telemetry?"""
    adapters: tuple[str | None, ...] = (None, None, None, "lora-a", "lora-b")
    cache_hit_ratio: float = 0.3
    """Share of requests whose prompt prefix is half cached."""


class Fleet:
    """A pool of simulated nodes.

    Args:
        spec: Shape of the pool.
        workload: Where requests come from.
        rng: Source of all randomness but the workload's.
        start_s: Unix seconds of simulation time 0.
        faults: Injected faults; `inject` adds more while it runs.
        router: Chooses nodes; default: least loaded, no breaker.
    """

    def __init__(
        self, spec: FleetSpec, workload: Workload, rng: np.random.Generator, *, start_s: float,
        faults: Sequence[Fault] = (), router: Router | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.start_s = start_s
        self.now_s = 0.0
        self.router = router or Router()
        self.engines = [Engine(name, spec.node) for name in spec.nodes]
        self.sent: dict[str, int] = dict.fromkeys(spec.nodes, 0)
        """Requests routed to each node so far."""
        self.faults: list[Fault] = []
        self._workload = workload
        self._speed_rng, self._request_rng = rng.spawn(2)
        self._lottery = np.exp(self._speed_rng.normal(0.0, spec.lottery_ratio, len(spec.nodes)))
        self._wobble = self._speed_rng.normal(0.0, spec.wobble_ratio, len(spec.nodes))
        self._number = itertools.count()
        self._tie = itertools.count()
        self._wakes: list[tuple[float, int]] = []
        self._deadlines: deque[tuple[float, int, Job]] = deque()
        self._out: list[tuple[float, int, Event]] = []
        self._samples = 0
        self._edges: list[float] = []
        self._lost_telemetry = dict.fromkeys(spec.nodes, 0)
        for fault in faults:
            self.inject(fault)
        self._repace()
        self._next = workload.next()
        self._arrival_s = self._next.gap_s

    def inject(self, fault: Fault) -> None:
        """Add a fault whose start is not in the past.

        Raises:
            ValueError: If it starts in the past or names a node that the pool does not have.
        """
        if fault.from_s < self.now_s:
            raise ValueError(f"fault {fault.name} starts at {fault.from_s} s, it is {self.now_s} s already")
        if fault.node != "*" and fault.node not in self.sent:
            raise ValueError(f"fault {fault.name}: the pool has no node {fault.node!r}; it has {', '.join(self.sent)}")
        self.faults.append(fault)
        for edge_s in (fault.from_s, fault.to_s):
            if math.isfinite(edge_s):
                heapq.heappush(self._edges, edge_s)

    def end(self, fault: Fault) -> None:
        """End an injected fault now, however long it was meant to last."""
        self.faults[self.faults.index(fault)] = dataclasses.replace(fault, to_s=self.now_s)
        heapq.heappush(self._edges, self.now_s)

    def advance(self, until_s: float) -> list[Event]:
        """Simulate up to `until_s` (seconds since the start) and return the telemetry up to then, in time order."""
        while True:
            sample_s = self._samples * self.spec.sample_s
            wake_s = self._wakes[0][0] if self._wakes else math.inf
            edge_s = self._edges[0] if self._edges else math.inf
            deadline_s = self._deadlines[0][0] if self._deadlines else math.inf
            now_s = min(self._arrival_s, sample_s, wake_s, edge_s, deadline_s)
            if now_s > until_s:
                break
            self.now_s = max(self.now_s, now_s)
            if now_s == edge_s:
                heapq.heappop(self._edges)
                self._fault_edge(now_s)
            elif now_s == wake_s:
                index = heapq.heappop(self._wakes)[1]
                if self.engines[index].wake_s <= now_s:  # else it was rescheduled since
                    self._finished(index, self.engines[index].poll(now_s))
            elif now_s == deadline_s:
                self._deadline(*self._deadlines.popleft())
            elif now_s == self._arrival_s:
                self._arrive(now_s)
            else:
                self._sample(now_s)
        self.now_s = max(self.now_s, until_s)
        events: list[Event] = []
        while self._out and self._out[0][0] <= until_s:
            events.append(heapq.heappop(self._out)[2])
        return events

    def _active(self, node: str) -> list[Fault]:
        return [f for f in self.faults if f.active(self.now_s) and f.hits(node)]

    def _pool_factor(self, attribute: str) -> float:
        active = (f for f in self.faults if f.active(self.now_s) and getattr(f.kind, attribute))
        return math.prod(f.strength for f in active)

    def _arrive(self, now_s: float) -> None:
        arrival = self._next
        self._next = self._workload.next()
        self._arrival_s = now_s + self._next.gap_s / self._pool_factor("rate")
        uniform = self._request_rng.random(4)  # the same number of draws for every request, whatever happens to it
        prompt = max(1, round(arrival.prompt_tokens * self._pool_factor("prompt")))
        number = next(self._number)
        job = Job(
            number, now_s, prompt, arrival.output_tokens,
            cached_tokens=prompt // 2 if uniform[0] < self.spec.cache_hit_ratio else 0,
            adapter=self.spec.adapters[int(uniform[1] * len(self.spec.adapters))],
            tenant=f"t-{number % 5}", session=f"s-{number % 997}",
        )  # fmt: skip
        index, job.probe = self.router.choose(self.engines)
        engine = self.engines[index]
        spread = math.exp(self.spec.node.overhead_sigma * self._request_rng.standard_normal())
        job.overhead_s = self.spec.node.overhead_s * spread * min(engine.prefill_pace, _SLOWEST)
        self.sent[engine.name] += 1
        active = self._active(engine.name)
        if any(f.kind.down for f in active):
            self._refuse(engine, job, "server_error")
            return
        for fault in active:
            kind = fault.kind
            if kind.outcome and uniform[2] < fault.strength:
                job.outcome = kind.outcome
            if kind.tail_ratio and uniform[3] < kind.tail_ratio:
                job.stretch = fault.strength
            if kind.adapter is not None and job.adapter is not None and kind.adapter in ("*", job.adapter):
                job.stretch = fault.strength
            if kind.session and uniform[2] < fault.strength:
                job.session, job.outcome = _POISON, "server_error"
            if kind.tenant is not None and kind.tenant == job.tenant:
                job.outcome = "server_error"
        if job.outcome in ("client_error", "server_error"):
            self._refuse(engine, job, job.outcome)
            return
        if job.outcome == "empty":
            job.output_tokens = 1
        elif job.outcome == "midstream_error":
            job.output_tokens = max(2, job.output_tokens // 2)
        self._finished(index, engine.poll(now_s))
        if not engine.submit(job, now_s):
            self._refuse(engine, job, "backpressure")
            return
        self._schedule(index)
        self._deadlines.append((now_s + self.spec.timeout_s, index, job))

    def _refuse(self, engine: Engine, job: Job, outcome: str) -> None:
        self._emit_request(engine.name, job, outcome, job.arrival_s + _FAST_FAILURE_S, e2e_s=_FAST_FAILURE_S)

    def _finished(self, index: int, jobs: list[Job]) -> None:
        name = self.engines[index].name
        for job in jobs:
            queue_s = job.start_s - job.arrival_s
            ttft_s = (job.first_s - job.arrival_s) * job.stretch
            e2e_s = (job.finish_s - job.arrival_s) * job.stretch
            if job.outcome == "empty":
                self._emit_request(name, job, "empty", job.finish_s, e2e_s=e2e_s, output_tokens=0)
                continue
            tpot_s = None
            if job.output_tokens > 1:
                tpot_s = (job.finish_s - job.first_s) / (job.output_tokens - 1) * job.stretch
            self._emit_request(
                name, job, job.outcome, job.arrival_s + e2e_s, queue_s=queue_s, ttft_s=ttft_s, tpot_s=tpot_s,
                e2e_s=e2e_s, output_tokens=job.output_tokens,
            )  # fmt: skip
        self._schedule(index)

    def _schedule(self, index: int) -> None:
        if math.isfinite(wake_s := self.engines[index].wake_s):
            heapq.heappush(self._wakes, (wake_s, index))

    def _deadline(self, deadline_s: float, index: int, job: Job) -> None:
        if math.isnan(job.finish_s) and not job.aborted:
            engine = self.engines[index]
            engine.abort(job)
            ttft_s = None if math.isnan(job.first_s) else job.first_s - job.arrival_s
            self._emit_request(engine.name, job, "timeout", deadline_s, ttft_s=ttft_s, e2e_s=self.spec.timeout_s)
            self._finished(index, engine.poll(deadline_s))

    def _fault_edge(self, now_s: float) -> None:
        for fault in self.faults:
            kind = fault.kind
            if fault.from_s == now_s:
                if kind.deploy:
                    self._put(now_s, None, DeployEvent(ts=self._ts(now_s), pool=self.spec.pool, what="engine 0.33.0 -> 0.34.0"))
                for index, engine in enumerate(self.engines):
                    if fault.hits(engine.name):
                        self._begin(fault, index, engine, now_s)
            if fault.to_s == now_s and kind.down:
                for engine in self.engines:
                    engine.boot += fault.hits(engine.name)
        self._repace()

    def _begin(self, fault: Fault, index: int, engine: Engine, now_s: float) -> None:
        if fault.kind.down:
            self._finished(index, engine.poll(now_s))
            for job in engine.drop_all():
                job.aborted = True
                self._emit_request(engine.name, job, "midstream_error", now_s, e2e_s=now_s - job.arrival_s)
        if fault.kind.xid is not None:
            event = GpuEvent(
                ts=self._ts(now_s), pool=self.spec.pool, node=engine.name, gpu=f"GPU-{engine.name}", xid=fault.kind.xid
            )
            self._put(now_s, engine.name, event)

    def _repace(self) -> None:
        """Give every engine the speed that lottery, wobble and faults make."""
        for index, engine in enumerate(self.engines):
            base = self._lottery[index] * math.exp(self._wobble[index])
            step = prefill = float(base)
            engine.kv_ratio = 1.0
            for fault in self._active(engine.name):
                kind, progress = fault.kind, fault.progress(self.now_s)
                if kind.hang:
                    step = prefill = math.inf
                if kind.step is not None:
                    step *= kind.step(fault.strength, progress)
                if kind.prefill is not None:
                    prefill *= kind.prefill(fault.strength, progress)
                if kind.kv:
                    engine.kv_ratio /= fault.strength
            self._finished(index, engine.set_pace(self.now_s, step, prefill))

    def _sample(self, now_s: float) -> None:
        self._samples += 1
        noise = self._speed_rng.normal(0.0, self.spec.wobble_ratio, len(self.engines))
        self._wobble = 0.95 * self._wobble + math.sqrt(1 - 0.95**2) * noise
        for index, engine in enumerate(self.engines):
            self._finished(index, engine.poll(now_s))
            active = self._active(engine.name)
            if any(f.kind.down for f in active):
                continue
            event = NodeEvent(
                ts=self._ts(now_s), pool=self.spec.pool, node=engine.name, boot_id=f"b{engine.boot}", engine="vllm 0.33.0",
                running=engine.n_running, waiting=len(engine.waiting), kv_cache_usage_ratio=round(engine.kv_usage_ratio, 4),
                generated_tokens_total=engine.tokens_total, preemptions_total=0,
            )  # fmt: skip
            self._put(now_s, engine.name, event)
            if self.spec.gpu and self._samples % _GPU_EVERY == 1:
                self._put(now_s, engine.name, gpu_event(event.ts, self.spec.pool, engine, active, self._speed_rng))
        self._repace()

    def _emit_request(
        self, node: str, job: Job, outcome: str, at_s: float, *, e2e_s: float, queue_s: float | None = None,
        ttft_s: float | None = None, tpot_s: float | None = None, output_tokens: int = 0,
    ) -> None:  # fmt: skip
        event = RequestEvent(
            ts=self._ts(at_s), pool=self.spec.pool, node=node, outcome=outcome, request_id=f"r{job.number}",
            tenant=job.tenant, session=job.session, adapter=job.adapter,
            prompt_tokens=job.prompt_tokens, output_tokens=output_tokens, cached_tokens=job.cached_tokens,
            queue_s=_rounded(queue_s), ttft_s=_rounded(ttft_s), tpot_s=_rounded(tpot_s), e2e_s=_rounded(e2e_s),
            batch_size=job.batch_size or None, probe=None if self.router.gate is None else job.probe,
        )  # fmt: skip
        self._put(at_s, node, event)

    def _put(self, at_s: float, node: str | None, event: Event) -> None:
        if node is not None and any(f.kind.silent for f in self.faults if f.active(at_s) and f.hits(node)):
            self._lost_telemetry[node] += 1
            return
        heapq.heappush(self._out, (at_s, next(self._tie), event))

    def _ts(self, at_s: float) -> float:
        return round(self.start_s + at_s, 6)


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)
