"""One serving node with continuous batching (Orca, OSDI 2022; vLLM): the batch changes at every step boundary.

Waiting requests are admitted first come first served while the batch and the KV cache have room; a prefill runs alone and
delays the others (no chunked prefill), then every running request gets one token a step. A step takes
`step_base_s + step_per_seq_s * batch`. Between two changes of the batch all steps are equal, so they are computed in one jump:
the cost of a simulated request does not depend on how many tokens it produces.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Engine", "Job", "NodeSpec"]

_EPS_STEPS = 1e-6  # a boundary reached up to rounding counts as reached
_LEAST_S = 1e-9  # a prefill never has exactly nothing left: 0 * infinity would be no number


@dataclass(frozen=True)
class NodeSpec:
    """Hardware and engine settings; the defaults resemble an 8-GPU node that serves a 70B model."""

    max_batch: int = 64
    max_waiting: int = 128
    """Requests queued beyond which the node answers 429 (backpressure)."""
    prefill_tokens_per_s: float = 8000.0
    step_base_s: float = 0.0125
    step_per_seq_s: float = 0.00035
    kv_capacity_tokens: int = 120_000
    overhead_s: float = 0.01
    """Median time of HTTP, tokeniser and scheduler before a request can be queued."""
    overhead_sigma: float = 0.5
    """Standard deviation of its logarithm: what makes equal requests differ on an idle node."""


@dataclass(slots=True)
class Job:
    """One request on its way through a node; times in seconds on the simulation's clock."""

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    overhead_s: float = 0.0
    adapter: str | None = None
    tenant: str = ""
    session: str = ""
    probe: bool = False
    outcome: str = "ok"
    stretch: float = 1.0
    """Factor on all latencies as the caller sees them (a slow path outside the batch)."""
    start_s: float = math.nan
    first_s: float = math.nan
    finish_s: float = math.nan
    finish_step: int = 0
    batch_size: int = 0
    aborted: bool = False

    @property
    def kv_tokens(self) -> int:
        """KV cache that admission reserves: prompt and full output, so a running request is never pre-empted."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True)
class Engine:
    """State of one node. `wake_s` says when `poll` has to be called next; every change goes through a method."""

    name: str
    spec: NodeSpec
    pace: float = 1.0
    """Factor on decode steps (hardware lottery, wobble, faults); infinite = hung."""
    prefill_pace: float = 1.0
    kv_ratio: float = 1.0
    """Share of the KV cache that can be used."""
    boot: int = 1
    waiting: deque[Job] = field(default_factory=deque)
    prefilling: Job | None = None
    running: list[tuple[int, int, Job]] = field(default_factory=list)
    tokens_total: int = 0
    wake_s: float = math.inf
    _clock_s: float = 0.0  # the last step boundary, or the moment up to which the prefill was accounted for
    _steps: int = 0
    _step_s: float = 0.0
    _prefill_left_s: float = 0.0  # at pace 1
    _kv_used: int = 0
    _has_aborted: bool = False

    @property
    def n_running(self) -> int:
        """Requests in the batch, prefill included."""
        return len(self.running) + (self.prefilling is not None)

    @property
    def load(self) -> int:
        """Requests on the node, which is what a least-loaded router compares."""
        return self.n_running + len(self.waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the usable KV cache that is reserved, at most 1."""
        return min(1.0, self._kv_used / (self.spec.kv_capacity_tokens * self.kv_ratio))

    def submit(self, job: Job, now_s: float) -> bool:
        """Queue `job`; False when the queue is full. Call `poll(now_s)` before."""
        if len(self.waiting) >= self.spec.max_waiting:
            return False
        if self.load == 0:
            self._clock_s = now_s
        self.waiting.append(job)
        self._schedule(now_s)
        return True

    def abort(self, job: Job) -> None:
        """The caller went away. A hung engine keeps the request: it notices at its next step boundary only."""
        job.aborted = True
        self._has_aborted = True

    def drop_all(self) -> list[Job]:
        """The process died: forget everything, return what was in flight."""
        lost = [job for _, _, job in self.running] + list(self.waiting)
        if self.prefilling is not None:
            lost.append(self.prefilling)
        self.running.clear()
        self.waiting.clear()
        self.prefilling = None
        self._kv_used = self.tokens_total = 0
        self.wake_s = math.inf
        return [job for job in lost if not job.aborted]

    def set_pace(self, now_s: float, pace: float, prefill_pace: float) -> list[Job]:
        """Change the speed from `now_s` on; returns what finished until then."""
        if pace == self.pace and prefill_pace == self.prefill_pace:
            return []
        finished = self.poll(now_s)
        if self.prefilling is not None:
            done_s = max(0.0, now_s - self._clock_s) / self.prefill_pace
            self._prefill_left_s = max(_LEAST_S, self._prefill_left_s - done_s)
            self._clock_s = max(self._clock_s, now_s)
        elif self.running:
            done_ratio = 0.0 if math.isinf(self._step_s) else (now_s - self._clock_s) / self._step_s
            after_s = self._step_length_s(pace)
            self._clock_s = now_s if math.isinf(after_s) else now_s - done_ratio * after_s
        self.pace, self.prefill_pace = pace, prefill_pace
        self._step_s = self._step_length_s(pace)
        self._schedule(now_s)
        return finished

    def poll(self, now_s: float) -> list[Job]:
        """Run up to `now_s`; returns the requests that finished, in order, with their times filled in."""
        finished: list[Job] = []
        while True:
            if self.prefilling is not None:
                end_s = self._clock_s + self._prefill_left_s * self.prefill_pace
                if end_s > now_s:
                    break
                self._end_prefill(end_s, finished)
            elif self.running and not self._decode(now_s, finished):
                break
            if self._has_aborted:
                self._remove_aborted()
            if self.waiting and self._fits(self.waiting[0]):
                self._start_prefill(self.waiting.popleft())
            elif self.running:
                self._step_s = self._step_length_s(self.pace)
                if self._clock_s + self._step_s > now_s:
                    break
            else:
                break
        self._schedule(now_s)
        return finished

    def _start_prefill(self, job: Job) -> None:
        job.start_s = max(self._clock_s, job.arrival_s + job.overhead_s)
        self._clock_s = job.start_s
        self._prefill_left_s = max(1, job.prompt_tokens - job.cached_tokens) / self.spec.prefill_tokens_per_s
        self._kv_used += job.kv_tokens
        self.prefilling = job

    def _end_prefill(self, end_s: float, finished: list[Job]) -> None:
        job, self.prefilling = self.prefilling, None
        assert job is not None  # noqa: S101  # the caller checked; for the type checker
        self._clock_s = job.first_s = end_s
        self.tokens_total += 1
        job.batch_size = len(self.running) + 1
        if job.output_tokens <= 1 or job.aborted:
            self._finish(job, end_s, finished)
        else:
            job.finish_step = self._steps + job.output_tokens - 1
            heapq.heappush(self.running, (job.finish_step, job.number, job))

    def _decode(self, now_s: float, finished: list[Job]) -> bool:
        """Make the steps that fit before `now_s`, to the next finish at most. False when none fits."""
        if math.isinf(self._step_s):
            return False
        fit = int((now_s - self._clock_s) / self._step_s + _EPS_STEPS)
        if fit < 1:
            return False
        until_change = 1 if self._has_aborted or self._admissible() else self.running[0][0] - self._steps
        steps = min(fit, until_change)
        self._clock_s += steps * self._step_s
        self._steps += steps
        self.tokens_total += steps * len(self.running)
        while self.running and self.running[0][0] <= self._steps:
            self._finish(heapq.heappop(self.running)[2], self._clock_s, finished)
        return True

    def _finish(self, job: Job, now_s: float, finished: list[Job]) -> None:
        self._kv_used -= job.kv_tokens
        job.finish_s = now_s
        if not job.aborted:
            finished.append(job)

    def _remove_aborted(self) -> None:
        self.waiting = deque(job for job in self.waiting if not job.aborted)
        kept = [entry for entry in self.running if not entry[2].aborted]
        if len(kept) < len(self.running):
            self._kv_used -= sum(job.kv_tokens for _, _, job in self.running if job.aborted)
            heapq.heapify(kept)
            self.running = kept
        self._has_aborted = self.prefilling is not None and self.prefilling.aborted

    def _fits(self, job: Job) -> bool:
        if self._kv_used == 0:
            return True  # a request larger than the cache runs alone rather than never
        room = self.spec.kv_capacity_tokens * self.kv_ratio
        return len(self.running) < self.spec.max_batch and self._kv_used + job.kv_tokens <= room

    def _admissible(self) -> bool:
        return bool(self.waiting) and self._fits(self.waiting[0])

    def _step_length_s(self, pace: float) -> float:
        return (self.spec.step_base_s + self.spec.step_per_seq_s * len(self.running)) * pace

    def _schedule(self, now_s: float) -> None:
        if self.prefilling is not None:
            self.wake_s = self._clock_s + self._prefill_left_s * self.prefill_pace
        elif self.running:
            steps = 1 if self._has_aborted or self._admissible() else self.running[0][0] - self._steps
            self.wake_s = self._clock_s + steps * self._step_s
        elif self.waiting:
            self.wake_s = now_s
        else:
            self.wake_s = math.inf
