"""A small seeded fleet: latencies like those of a served 70B model, faults by name, fed to a judge in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.batch import NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.outcome import Outcome
from schemas.policy import PoolPolicy, Slo
from schemas.results import Decision, Finding, Verdict
from schemas.telemetry import DeployEvent, GpuEvent, NodeEvent
from streams.judge import PoolJudge, TickOutput

T0 = 1_767_225_600  # divisible by an hour
POOL = "chat-70b/eu/h100"
StateEvent = NodeEvent | GpuEvent | DeployEvent


@dataclass
class Fault:
    """From `start` on (seconds after T0) the nodes `nodes` do what `kind` says."""

    kind: str
    nodes: Sequence[int]
    start: float
    end: float = 1e9
    strength: float = 3.0
    share: float = 1.0


@dataclass
class Traffic:
    """Requests in time order, and state events."""

    batch: RequestBatch
    events: list[StateEvent] = field(default_factory=list)


@dataclass
class Heard:
    """Everything a judge said."""

    outputs: list[TickOutput]

    @property
    def decisions(self) -> list[Decision]:
        return [d for o in self.outputs for d in o.decisions]

    @property
    def findings(self) -> list[Finding]:
        return [f for o in self.outputs for f in o.findings]

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for o in self.outputs for v in o.verdicts]

    def opened(self) -> list[str]:
        return [d.subject for d in self.decisions if d.state == "OPEN"]

    def first_open_s(self, node: str) -> float | None:
        return next((d.t - T0 for d in self.decisions if d.state == "OPEN" and d.subject == node), None)

    def words(self) -> set[str]:
        return {f.finding for f in self.findings}


def name(i: int) -> str:
    return f"gpu-{i:02d}"


def make_traffic(
    *, nodes: int = 4, rate: float = 5.0, seconds: float = 900.0, seed: int = 1, faults: Sequence[Fault] = (),
    speed: Sequence[float] | None = None, state_events: bool = True, pool: str = POOL, marked: bool = False,
) -> Traffic:  # fmt: skip
    rng = np.random.default_rng(seed)
    n = rng.poisson(nodes * rate * seconds)
    at = np.sort(rng.uniform(0.0, seconds, n))
    node = rng.integers(0, nodes, n)
    prompt = np.exp(rng.normal(6.1, 0.6, n))
    output = np.maximum(2.0, np.exp(rng.normal(4.6, 0.6, n))).round()
    pace = np.ones(nodes) if speed is None else np.asarray(speed)
    slow = pace[node].copy()
    outcome = np.full(n, int(Outcome.OK), np.uint8)
    mismatch, blank = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    gone = np.zeros(n, np.bool_)
    for fault in faults:
        hit = np.isin(node, fault.nodes) & (at >= fault.start) & (at < fault.end)
        some = hit & (rng.uniform(size=n) < fault.share)
        if fault.kind == "slow":
            slow[some] *= fault.strength
        elif fault.kind == "drift":
            slow[hit] *= np.minimum(fault.strength, 1 + (fault.strength - 1) * (at[hit] - fault.start) / 3600.0)
        elif fault.kind == "long_prompts":
            prompt[hit] *= fault.strength
        elif fault.kind == "long_answers":
            output[some] = (output[some] * fault.strength).round()
        elif fault.kind == "empty_ok":
            blank[some] = True
        elif fault.kind in ("stall", "silent", "idle"):
            gone |= hit
        elif fault.kind == "foreign_kv":
            mismatch |= some
        else:
            outcome[some] = int(Outcome[fault.kind.upper()])
    ttft = (0.02 + 0.00023 * prompt) * np.exp(rng.normal(0.0, 0.25, n)) * slow
    tpot = 0.018 * np.exp(rng.normal(0.0, 0.12, n)) * slow
    queue = 0.004 * np.exp(rng.normal(0.0, 0.5, n))
    latency = np.stack([ttft, tpot, queue, queue + ttft + tpot * output]).astype(np.float32)
    latency[:, outcome != int(Outcome.OK)] = np.nan
    output[blank] = 0
    latency[:2, blank], latency[3, blank] = np.nan, 0.06
    keep = ~gone
    count = int(keep.sum())
    batch = RequestBatch(
        pool=pool,
        nodes=[name(i) for i in range(nodes)],
        node=node[keep].astype(np.uint32),
        ts_ns=np.rint((T0 + at[keep]) * 1e6).astype(np.int64) * 1000,
        latency_s=latency[:, keep],
        outcome=outcome[keep],
        prompt_tokens=prompt[keep].astype(np.uint32),
        output_tokens=output[keep].astype(np.uint32),
        cached_tokens=np.full(count, UNKNOWN_TOKENS, np.uint32),
        batch_size=np.full(count, UNKNOWN_TOKENS, np.uint32),
        probe=np.full(count, 0 if marked else -1, np.int8),
        adapters=[],
        adapter=np.full(count, NO_CODE, np.uint32),
        tenants=[],
        tenant=np.full(count, NO_CODE, np.uint32),
        session=np.zeros(count, np.uint32),
        kv_mismatch=mismatch[keep],
    )
    return Traffic(batch, _state_events(nodes, seconds, faults, pool) if state_events else [])


def _state_events(nodes: int, seconds: float, faults: Sequence[Fault], pool: str) -> list[StateEvent]:
    events: list[StateEvent] = []
    tokens = [0] * nodes
    for second in range(int(seconds)):
        for i in range(nodes):
            active = {f.kind for f in faults if i in f.nodes and f.start <= second < f.end}
            if "silent" in active:
                continue
            if not active & {"stall", "idle"}:
                tokens[i] += 500
            running = 0 if "idle" in active else 3
            events.append(
                NodeEvent(
                    ts=float(T0 + second), pool=pool, node=name(i), boot_id="b1", running=running, waiting=0,
                    generated_tokens_total=tokens[i],
                )
            )  # fmt: skip
    return events


def make_policy(ttft_s: float = 1.0, **settings: object) -> PoolPolicy:
    slo = {"ttft_s": Slo(threshold=ttft_s), "e2e_s": Slo(threshold=30.0)}
    return PoolPolicy.model_validate({"mode": "enforce", "slo": slo, **settings})


def feed(judge: PoolJudge, traffic: Traffic, piece_s: float = 5.0, finish: bool = True) -> Heard:
    """Requests and events of `piece_s` seconds at a time, as a live worker would get them."""
    outputs: list[TickOutput] = []
    ts = (traffic.batch.ts_ns - T0 * 10**9) / 1e9
    event_ts = np.array([e.ts - T0 for e in traffic.events])
    end = max([*ts.tolist()[-1:], *event_ts.tolist()[-1:], 0.0])
    for k in range(int(end // piece_s) + 1):
        rows: NDArray[np.bool_] = (ts >= k * piece_s) & (ts < (k + 1) * piece_s)
        judge.requests(traffic.batch.take(rows))
        for i in np.flatnonzero((event_ts >= k * piece_s) & (event_ts < (k + 1) * piece_s)):
            judge.event(traffic.events[i])
        outputs.extend(judge.advance())
    if finish:
        outputs.extend(judge.finish())
    return Heard(outputs)


@pytest.fixture
def judged() -> Callable[..., Heard]:
    """Make traffic, judge it, return what was said."""

    def run(
        *, policy: PoolPolicy | None = None, piece_s: float = 5.0, extra: Sequence[StateEvent] = (), **traffic: object
    ) -> Heard:
        made = make_traffic(**traffic)  # type: ignore[arg-type]
        made.events = sorted([*made.events, *extra], key=lambda e: e.ts)
        return feed(PoolJudge(POOL, policy or make_policy(), policy_version="v1"), made, piece_s)

    return run


class Kit:
    """What tests of the judge build with."""

    T0 = T0
    POOL = POOL
    Fault = Fault
    Heard = Heard
    Traffic = Traffic
    name = staticmethod(name)
    traffic = staticmethod(make_traffic)
    policy = staticmethod(make_policy)
    feed = staticmethod(feed)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
