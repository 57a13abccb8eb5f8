"""Redis follows the log: at once after a decision, every second otherwise, and with the newest state after an absence."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from schemas.contract import Entry, Probe
from schemas.errors import SinkBackpressure
from schemas.results import Decision
from sinks.redis_decisions import Fenced, OverCap
from streams.worker.projector import PoolHead, Projector


class Sink:
    """Keeps what is asserted."""

    def __init__(self) -> None:
        self.states: list[tuple[str, tuple[int, int, int], list[str], int]] = []
        self.beats: list[str] = []
        self.news: list[str] = []
        self.forgotten: list[str] = []
        self.cleared: list[str] = []
        self.forged = True
        self.setups = 0
        self.errors: list[Exception] = []
        self.now_ms = lambda: 1_796_000_000_000
        self.said = asyncio.Condition()

    async def setup(self) -> None:
        self.setups += 1
        self._fail()

    async def assert_state(
        self, pool: str, entries: list[Entry], *, version: Any, n_eligible: int, decisions: Any, **_: Any
    ) -> None:
        self._fail()
        self.states.append((pool, version, [e.subject for e in entries], n_eligible))
        self.news += [d.tx for d in decisions]
        await self._notify()

    async def heartbeat(self, pool: str) -> None:
        self._fail()
        self.beats.append(pool)
        await self._notify()

    def forget(self, pool: str) -> None:
        self.forgotten.append(pool)

    async def clear_forged(self, pool: str) -> bool:
        self.cleared.append(pool)
        return self.forged

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def _notify(self) -> None:
        async with self.said:
            self.said.notify_all()

    async def until(self, predicate: Any) -> None:
        async with asyncio.timeout(5), self.said:
            await self.said.wait_for(predicate)


@pytest.fixture
async def sink() -> Sink:
    return Sink()


def head(epoch: int = 3, n_eligible: int = 20) -> PoolHead:
    return PoolHead(version=(1, epoch, 0), n_eligible=n_eligible, cap=2, mode="enforce", clock_s=1000.0)


def decision(seq: int, subject: str = "n1", state: Any = "OPEN", epoch: int = 3) -> Decision:
    return Decision(
        t=1000.0, pool="p", scope="node", subject=subject, state=state, version=(1, epoch, seq), tx=f"tx{seq}", not_after=1060.0
    )


async def run_once(projector: Projector, beat: bool = True) -> bool:
    return await projector._assert_all(beat=beat)


async def test_state_is_asserted_whole_when_it_changed_and_by_heartbeat_otherwise(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    projector.update("p", head(), [], Probe())
    assert await run_once(projector)
    assert sink.states == [("p", (1, 3, 0), [], 20)]
    assert await run_once(projector)
    assert (len(sink.states), sink.beats) == (1, ["p"])
    projector.update("p", head(), [decision(1), decision(2, "n2")], Probe())
    assert await run_once(projector, beat=False)
    assert sink.states[-1] == ("p", (1, 3, 2), ["n1", "n2"], 20)
    assert sink.news == ["tx1", "tx2"]
    projector.update("p", head(n_eligible=21), [], Probe())
    await run_once(projector)
    assert sink.states[-1][3] == 21
    projector.update("p", head(n_eligible=21), [], Probe())
    await run_once(projector, beat=False)
    assert len(sink.states) == 3, "nothing changed, and it is not time for a heartbeat"


async def test_decision_wakes_the_task_at_once(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    task = asyncio.create_task(projector.run())
    projector.update("p", head(), [decision(1)], Probe())
    async with asyncio.timeout(0.9):
        await sink.until(lambda: len(sink.states) == 1)
    await sink.until(lambda: len(sink.beats) >= 2)
    task.cancel()


async def test_a_decision_during_a_round_of_heartbeats_does_not_wait_for_its_end(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    for pool in ("a", "b", "p"):
        projector.update(pool, head(), [], Probe())
    await run_once(projector)
    told: list[str] = []
    beat, tell = sink.heartbeat, sink.assert_state

    async def heartbeat(pool: str) -> None:
        if not told:
            projector.update("p", head(), [decision(1)], Probe())
        told.append(f"beat {pool}")
        await beat(pool)

    async def assert_state(pool: str, entries: list[Entry], **more: Any) -> None:
        told.append(f"state {pool}")
        await tell(pool, entries, **more)

    sink.heartbeat, sink.assert_state = heartbeat, assert_state  # type: ignore[method-assign]
    assert await run_once(projector)
    assert told == ["beat a", "state p", "beat b"]


async def test_absence_of_redis_keeps_only_the_newest_state(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    sink.errors = [SinkBackpressure("away") for _ in range(3)]
    for seq, state in ((1, "OPEN"), (2, "HALF_OPEN"), (3, "CLOSED")):
        projector.update("p", head(), [decision(seq, state=state)], Probe())
        assert not await run_once(projector)
    assert projector.failures == 3
    assert await run_once(projector)
    assert sink.states == [("p", (1, 3, 3), [], 20)]
    assert sink.setups == 4, "a Redis that was away may have lost the function library"


async def test_fenced_pool_silences_no_other_and_keeps_its_state(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    for pool in ("a", "b"):
        projector.update(pool, head(), [Decision(**{**msgspec.structs.asdict(decision(1)), "pool": pool})], Probe())
    await run_once(projector)
    fenced = True

    async def beat(pool: str) -> None:
        if pool == "a" and fenced:
            raise Fenced("newer, or forged")
        sink.beats.append(pool)

    sink.heartbeat = beat  # type: ignore[method-assign]
    assert await run_once(projector)
    assert await run_once(projector)
    assert (sink.forgotten, sink.beats) == ([], ["b", "b"])
    fenced = False
    await run_once(projector)
    assert sink.beats[2:] == ["a", "b"]
    projector.update("a", head(), [decision(2, "n2")], Probe())
    await run_once(projector)
    assert sink.states[-1][:3] == ("a", (1, 3, 2), ["n1", "n2"]), "what was open before is still in the state"


async def test_refused_state_of_one_pool_does_not_silence_the_others(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    for pool in ("a", "b"):
        projector.update(pool, head(), [], Probe())
    assert await run_once(projector)
    projector.update("a", head(n_eligible=1), [], Probe())
    projector.update("b", head(n_eligible=1), [], Probe())
    sink.errors = [OverCap("too many")]
    assert await run_once(projector)
    assert [s[0] for s in sink.states] == ["a", "b", "b"]
    assert projector.failures == 1


async def test_blind_judge_says_nothing(sink: Sink) -> None:
    sees = False
    projector = Projector(sink, may_speak=lambda: sees)  # type: ignore[arg-type]
    projector.update("p", head(), [decision(1)], Probe())
    assert await run_once(projector)
    assert sink.states == []
    sees = True
    assert await run_once(projector)
    assert len(sink.states) == 1


async def test_forgotten_pool_gets_no_heartbeat(sink: Sink) -> None:
    projector = Projector(sink, may_speak=lambda: True)  # type: ignore[arg-type]
    projector.update("p", head(), [], Probe())
    await run_once(projector)
    projector.forget(["p", "q"])
    await run_once(projector)
    assert sink.beats == []
    assert sink.forgotten == ["p", "q"]


@pytest.mark.parametrize("ours", [True, False])
async def test_forged_state_is_removed_only_by_whom_the_log_calls_the_owner(sink: Sink, ours: bool) -> None:
    async def owns(pool: str) -> bool:
        return ours

    projector = Projector(sink, may_speak=lambda: True, owns=owns)  # type: ignore[arg-type]
    projector.update("p", head(), [decision(1)], Probe())
    await run_once(projector)
    sink.errors = [Fenced("forged")]
    await run_once(projector)
    assert sink.cleared == (["p"] if ours else [])
    await run_once(projector)
    assert len(sink.states) == (2 if ours else 1), "the whole state again; for somebody else's pool a beat"
    sink.errors = [Fenced("forged again, at once")]
    await run_once(projector)
    assert len(sink.cleared) <= 1, "the log is asked once in half a second, not at every beat"
