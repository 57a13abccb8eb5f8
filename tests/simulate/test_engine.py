"""The engine: queueing makes the latency, and what it reports adds up."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise

import numpy as np
import pytest

from streams.simulate.engine import Engine, Job, NodeSpec

# Steps of equal length and no prefill: a batch of k is then k servers with one queue, and theory says how long it is.
PLAIN = NodeSpec(
    max_batch=8, max_waiting=10**6, prefill_tokens_per_s=1e12, step_base_s=0.001, step_per_seq_s=0.0, kv_capacity_tokens=10**9
)


def drive(engine: Engine, arrivals: list[tuple[float, Job]], until_s: float = math.inf) -> list[Job]:
    """Feed arrivals and wake the engine when it asks for it."""
    finished: list[Job] = []
    for at_s, job in [*arrivals, (until_s, None)]:
        while engine.wake_s <= at_s and math.isfinite(engine.wake_s):
            finished += engine.poll(engine.wake_s)
        if job is not None:
            finished += engine.poll(at_s)
            assert engine.submit(job, at_s)
    return finished


def queue_wait_s(servers: int, at_s: list[float], service_s: list[float]) -> float:
    """Mean wait of first come first served with k servers (Kiefer and Wolfowitz 1955), for this very sample."""
    free_s = [0.0] * servers
    total_s = 0.0
    for arrival_s, length_s in zip(at_s, service_s, strict=True):
        start_s = max(heapq.heappop(free_s), arrival_s)
        total_s += start_s - arrival_s
        heapq.heappush(free_s, start_s + length_s)
    return total_s / len(at_s)


@pytest.mark.parametrize("utilisation", [0.5, 0.7, 0.9])
def test_waiting_time_is_that_of_a_queue_with_k_servers(utilisation: float) -> None:
    rng = np.random.default_rng(11)
    mean_tokens, n = 200.0, 30_000
    rate = utilisation * PLAIN.max_batch / (mean_tokens * PLAIN.step_base_s)
    at_s = np.cumsum(rng.exponential(1 / rate, n)).tolist()
    tokens = rng.geometric(1 / mean_tokens, n).tolist()
    jobs = [Job(i, t, 1, k) for i, (t, k) in enumerate(zip(at_s, tokens, strict=True))]
    finished = drive(Engine("n", PLAIN), list(zip(at_s, jobs, strict=True)))
    assert len(finished) == n
    wait_s = float(np.mean([j.start_s - j.arrival_s for j in finished]))
    # the first token comes with the prefill; admission waits for a step boundary, half a step on average
    expected_s = queue_wait_s(PLAIN.max_batch, at_s, [(k - 1) * PLAIN.step_base_s for k in tokens])
    assert wait_s == pytest.approx(expected_s + PLAIN.step_base_s / 2, rel=0.03)


def test_busy_batch_slows_every_request() -> None:
    spec = NodeSpec(prefill_tokens_per_s=1e9)
    alone = drive(Engine("n", spec), [(0.0, Job(0, 0.0, 10, 100))])[0]
    crowd = drive(Engine("n", spec), [(0.0, Job(i, 0.0, 10, 100)) for i in range(32)])
    assert alone.finish_s == pytest.approx(99 * (spec.step_base_s + spec.step_per_seq_s), rel=1e-3)
    slowest = max(j.finish_s for j in crowd)
    assert slowest == pytest.approx(99 * (spec.step_base_s + 32 * spec.step_per_seq_s), rel=0.02)


def test_tokens_are_counted_once() -> None:
    rng = np.random.default_rng(3)
    engine = Engine("n", NodeSpec(max_waiting=1000))
    at_s = np.cumsum(rng.exponential(0.1, 500)).tolist()
    jobs = [Job(i, t, int(rng.integers(1, 2000)), int(rng.integers(1, 300))) for i, t in enumerate(at_s)]
    finished = drive(engine, list(zip(at_s, jobs, strict=True)))
    assert engine.tokens_total == sum(j.output_tokens for j in finished) == sum(j.output_tokens for j in jobs)
    assert engine.load == 0
    assert engine.kv_usage_ratio == 0.0


def test_full_cache_makes_requests_wait_in_order() -> None:
    spec = NodeSpec(kv_capacity_tokens=1000)
    jobs = [Job(i, 0.0, 500, 100) for i in range(4)]  # 600 tokens each: one at a time
    finished = drive(Engine("n", spec), [(0.0, j) for j in jobs])
    assert [j.number for j in finished] == [0, 1, 2, 3]
    assert all(b.start_s >= a.finish_s for a, b in pairwise(finished))


def test_full_queue_refuses() -> None:
    engine = Engine("n", NodeSpec(max_batch=1, max_waiting=2))
    accepted = [engine.submit(Job(i, 0.0, 10, 10), 0.0) for i in range(4)]
    assert accepted == [True, True, False, False]


def test_hung_engine_makes_no_token_and_continues_afterwards() -> None:
    engine = Engine("n", NodeSpec())
    drive(engine, [(0.0, Job(i, 0.0, 100, 200)) for i in range(4)], until_s=1.0)
    engine.set_pace(1.0, math.inf, math.inf)
    tokens, running = engine.tokens_total, engine.n_running
    assert running == 4
    assert engine.wake_s == math.inf
    assert engine.poll(50.0) == []
    assert engine.submit(Job(9, 50.0, 100, 10), 50.0)
    assert (engine.tokens_total, engine.n_running, len(engine.waiting)) == (tokens, running, 1)
    engine.set_pace(60.0, 1.0, 1.0)
    finished = drive(engine, [])
    assert len(finished) == 5
    assert min(j.finish_s for j in finished) > 60.0


def test_pace_scales_what_is_left() -> None:
    spec = NodeSpec()
    step_s = spec.step_base_s + spec.step_per_seq_s
    engine = Engine("n", spec)
    job = Job(0, 0.0, 1, 101)
    drive(engine, [(0.0, job)], until_s=50 * step_s)
    engine.set_pace(50 * step_s, 3.0, 3.0)
    (finished,) = drive(engine, [])
    assert finished.finish_s == pytest.approx((50 + 3 * 50) * step_s, rel=0.01)


def test_aborted_request_leaves_at_the_next_step() -> None:
    engine = Engine("n", NodeSpec())
    job = Job(0, 0.0, 100, 1000)
    drive(engine, [(0.0, job)], until_s=1.0)
    engine.abort(job)
    assert engine.poll(1.1) == []
    assert engine.load == 0
    assert engine.kv_usage_ratio == 0.0
