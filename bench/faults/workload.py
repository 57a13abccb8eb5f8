"""A small deterministic story of a pool, and its known answer: the judge run in memory over the same events.

Ten nodes serve three requests a second each for four minutes; one of them becomes six times slower. The answer is OPEN,
HALF_OPEN, OPEN for that node and for no other. Pools are independent, so each fault has a pool of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from schemas.deadletter import DeadLetter
from schemas.policy_file import Policy, load_policy
from schemas.results import Decision, Finding
from schemas.topics import FRAMES
from streams.framer_cut import cut_frames
from streams.framer_time import time_slices
from streams.framing import EventFramer
from streams.judge.status import TickWindows
from streams.worker.partition import JudgePartition
from streams.worker.policy_factory import PolicyFactory

__all__ = [
    "LENGTH_S",
    "NODES",
    "POLICY",
    "SLOW",
    "T0_S",
    "Answer",
    "Event",
    "answer_of",
    "answer_of_frames",
    "policy_file",
    "story",
]

T0_S = 1_796_000_000.0
LENGTH_S = 240.0
SLOW_FROM_S = 150.0
NODES = 10
SLOW = "gpu-003"
POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    slo:
      ttft_s: {threshold: 1.0, objective: 0.99}
    breaker:
      probe_timeout_s: 2.0
"""

Event = tuple[float, bytes]
"""When it is sent, in seconds of event time since the start, and the message."""


def policy_file(folder: Path) -> Path:
    """The policy of every fault, as a file."""
    path = folder / "policy.yaml"
    path.write_text(POLICY)
    return path


def story(
    pool: str,
    *,
    slow: Sequence[tuple[str, float, float]] = ((SLOW, SLOW_FROM_S, LENGTH_S),),
    per_s: float = 3.0,
    length_s: float = LENGTH_S,
    nodes: int = NODES,
    seed: int = 11,
) -> list[Event]:
    """Request events of a pool in order of time.

    Args:
        pool: Its name.
        slow: (node, from, to): six times slower in between, seconds since the start.
        per_s: Requests a second and node.
        length_s: Seconds.
        nodes: Number of nodes.
        seed: Of arrivals and latencies.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for node in range(nodes):
        name = f"gpu-{node:03d}"
        at = rng.random(rng.poisson(per_s * length_s)) * length_s
        ttft = np.exp(rng.normal(np.log(0.3), 0.3, len(at)))
        for slow_name, start, stop in slow:
            if name == slow_name:
                ttft[(at >= start) & (at < stop)] *= 6
        rows += [(float(t), name, round(float(x), 5)) for t, x in zip(at, ttft, strict=True)]
    rows.sort()
    return [(t, request(pool, node, t, f"{pool}-{i}", x)) for i, (t, node, x) in enumerate(rows)]


def request(pool: str, node: str, t: float, request_id: str, ttft_s: float, **more: Any) -> bytes:
    """One request event `t` seconds after the start."""
    event = {
        "kind": "request", "ts": round(T0_S + t, 6), "pool": pool, "node": node, "request_id": request_id, "prompt_tokens": 500,
        "output_tokens": 100, "ttft_s": ttft_s, "e2e_s": round(4 * ttft_s, 5), "outcome": "ok", **more,
    }  # fmt: skip
    return json.dumps(event).encode()


@dataclass
class Answer:
    """What must come of some input.

    Attributes:
        decisions: In order, with epoch 0.
        rows: Requests that were judged.
        windows: (t in ms, pool, columns) of each tick.
        findings: In order.
        dead: Dead letters of the judge.
        rejected: Events that the judge did not use, by reason.
        refused: The ones of these that it dead-letters, by reason.
    """

    decisions: list[Decision] = field(default_factory=list)
    rows: int = 0
    windows: list[tuple[int, str, TickWindows]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0

    def take(self, step: Any) -> None:
        """Results of one step of a partition."""
        self.rows += step.rows
        self.duplicates += step.duplicates
        self.dead += step.dead
        for output in step.outputs:
            self.decisions += output.decisions
            self.findings += output.findings
            if output.windows is not None:
                self.windows.append((round(output.t * 1000), output.pool, output.windows))
            for reason, count in output.rejected.items():
                self.rejected[reason] = self.rejected.get(reason, 0) + count
            for reason, _ in output.refused:
                self.refused[reason] = self.refused.get(reason, 0) + 1


def answer_of(events: Iterable[Event], policy: Policy) -> Answer:
    """The known answer: framer and judge in memory, one after the other."""
    raw = [message for _, message in events]
    framer, frames = EventFramer(), []
    for start in range(0, len(raw), 500):
        chunk = raw[start : start + 500]
        for part in time_slices(framer.feed(chunk, range(start, start + len(chunk)))):
            frames += [frame for _, frame in cut_frames(part, "telemetry.requests", 0)]
    return answer_of_frames(enumerate(frames), policy)


def answer_of_frames(frames: Iterable[tuple[int, bytes]], policy: Policy, partition: int = 0) -> Answer:
    """What the judge makes of (offset, frame) of one partition, in memory."""
    state = JudgePartition(FRAMES.name, partition, PolicyFactory(policy), epoch=0, generation=1)
    answer, chunk = Answer(), []
    for offset, frame in frames:
        chunk.append(SimpleNamespace(offset=offset, timestamp=0, value=frame))
        if len(chunk) == 64:
            answer.take(state.step(chunk))
            chunk = []
    if chunk:
        answer.take(state.step(chunk))
    return answer


def load(folder: Path) -> Policy:
    """The policy of every fault."""
    return load_policy(str(policy_file(folder)))
