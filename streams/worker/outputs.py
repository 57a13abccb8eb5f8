"""What a judge concludes goes to Kafka first; decisions are then asserted in Redis.

Everything is handed to the producer in order. Only decisions are waited for: they may reach the hosts only after they are in the
log. The rest is durable before the snapshot that covers it, and so before its source offset is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from detectors.caps import open_limit
from schemas.contract import Probe
from schemas.deadletter import DeadLetter, to_message
from schemas.errors import SinkRejected
from schemas.results import Decision, encode_line
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, FRAMES, WINDOWS
from schemas.windows import encode_windows
from streams.kafka import Partitions
from streams.worker import metrics
from streams.worker.partition import JudgePartition, Step
from streams.worker.producer import LogProducer
from streams.worker.projector import PoolHead, Projector
from streams.worker.takeover import Owned

if TYPE_CHECKING:
    from streams.judge import TickOutput

__all__ = ["Outputs"]

log = structlog.get_logger(__name__)


class Outputs:
    """Shared by all partitions of a worker.

    Args:
        producer: Kafka.
        partitions: Partition counts of the topics.
        projector: Redis; None leaves it out.
    """

    def __init__(self, producer: LogProducer, partitions: Partitions, projector: Projector | None) -> None:
        self._producer = producer
        self._n_dead = partitions.count(DEADLETTER.name)
        self._projector = projector

    async def publish(self, owned: Owned, step: Step) -> None:
        """Append all results of a step; returns when its decisions are durable and on their way to Redis."""
        partition = owned.state.partition
        for letter in step.dead:
            await self.dead_letter(letter)
        for output in step.outputs:
            await self._history(partition, output)
        metrics.TICKS.inc(len(step.outputs))
        decisions = owned.state.new_decisions(step.outputs)
        if decisions:
            await self._decide(owned, decisions)
        touched = step.pools | {output.pool for output in step.outputs}
        self._tell(owned.state, touched, decisions)

    async def dead_letter(self, letter: DeadLetter) -> None:
        """Append one dead letter."""
        key, value, headers = to_message(letter)
        metrics.DEAD_LETTERS.labels(letter.stage, letter.reason).inc()
        await self._append(DEADLETTER.name, value, key, letter.partition % self._n_dead, headers)

    def announce(self, state: JudgePartition) -> None:
        """A partition was taken over: tell Redis what the log says about its pools."""
        for pool in state.pools.keys() | state.log.version.keys():
            live = sorted(state.log.live.get(pool, {}).values(), key=lambda d: d.version)
            self._tell(state, {pool}, live)

    def forget(self, state: JudgePartition) -> None:
        """A partition is not ours any more."""
        if self._projector is not None:
            self._projector.forget(state.pools.keys() | state.log.version.keys())

    async def settled(self) -> None:
        """Wait until everything appended so far is durable; what Kafka refuses for good was logged and counted."""
        await self._producer.settled()

    async def _history(self, partition: int, output: TickOutput) -> None:
        key = output.pool.encode()
        for reason, count in output.rejected.items():
            metrics.REJECTED.labels(reason).inc(count)
        for reason, event in output.refused:
            detail = f"refused by the judge of {output.pool} at {output.t:.3f}; rebuilt from its frame"
            await self.dead_letter(
                DeadLetter(raw=event, stage="judge", reason=reason, detail=detail, topic=FRAMES.name, partition=partition)
            )
        if output.windows is not None:
            value = encode_windows(output.pool, round(output.t * 1000), output.windows.columns())
            await self._append(WINDOWS.name, value, key, partition)
        for finding in output.findings:
            await self._append(FINDINGS.name, encode_line(finding), key, partition)

    async def _decide(self, owned: Owned, decisions: Sequence[Decision]) -> None:
        """Append decisions in order and wait for all of them. Kafka being away is waited out in the producer; if it refuses (no
        permission, no topic), that is tried again too: a judge that cannot decide must not go on as if it had.
        """
        pause_s, left = 0.5, list(decisions)
        while left:
            futures = [
                await self._producer.append(DECISIONS.name, encode_line(d), key=d.pool.encode(), partition=owned.state.partition)
                for d in left
            ]
            results = await asyncio.gather(*futures, return_exceptions=True)
            for decision, result in zip(left, results, strict=True):
                if isinstance(result, BaseException):
                    break
                owned.state.log.apply(decision)
                owned.log_offset = max(owned.log_offset, result + 1)
                metrics.DECISIONS.labels(decision.state).inc()
            failed = next((r for r in results if isinstance(r, BaseException)), None)
            left = [d for d in left if d.tx not in owned.state.log.known]
            if failed is not None:
                if not isinstance(failed, SinkRejected):
                    raise failed
                log.error("the decision log refuses a decision, trying again", cause=str(failed))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 10.0)

    def _tell(self, state: JudgePartition, pools: set[str], decisions: Sequence[Decision]) -> None:
        if self._projector is None:
            return
        for pool in sorted(pools):
            judge = state.judge(pool)
            n_eligible = state.n_eligible.get(pool, 0)
            head = PoolHead(
                version=(state.generation, state.epoch, 0), n_eligible=n_eligible,
                cap=open_limit(n_eligible, judge.policy.caps), mode=judge.policy.mode,
                clock_s=None if judge.clock_ns is None else judge.clock_ns / 1e9,
            )  # fmt: skip
            breaker = judge.policy.breaker
            probe = Probe(hosts=breaker.probe_hosts, per_s=breaker.probes_per_s, timeout_ms=round(breaker.probe_timeout_s * 1000))
            self._projector.update(pool, head, [d for d in decisions if d.pool == pool], probe)

    async def _append(
        self, topic: str, value: bytes, key: bytes, partition: int, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        future = await self._producer.append(topic, value, key=key, partition=partition, headers=headers)
        future.add_done_callback(lambda done: _count_refusal(topic, done))


def _count_refusal(topic: str, done: asyncio.Future[int]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        metrics.REFUSED_APPENDS.labels(topic).inc()
        log.error("a record was refused and is not in the log", topic=topic, cause=str(error))
