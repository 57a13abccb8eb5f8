"""Results of a step on their way to Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from schemas.deadletter import from_message
from schemas.results import Decision
from schemas.topics import DEADLETTER, DECISIONS, FRAMES
from streams.judge.results import TickOutput
from streams.worker.outputs import Outputs
from streams.worker.partition import JudgePartition, Step
from streams.worker.takeover import Owned


class Log:
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, Any]] = []

    async def append(self, topic: str, value: bytes, *, headers: Any = (), **_: Any) -> Any:
        self.records.append((topic, value, headers))
        appended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        appended.set_result(len(self.records) - 1)
        return appended


class Slow(Log):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answers: list[asyncio.Future[int]] = []

    async def append(self, topic: str, value: bytes, **_: Any) -> Any:
        self.records.append((topic, value, ()))
        self.answers.append(asyncio.get_running_loop().create_future())
        self.asked.set()
        return self.answers[-1]


async def test_hosts_hear_of_a_decision_once_it_is_in_the_log_and_not_before(factory: Any) -> None:
    log, told = Slow(), list[str]()
    projector: Any = SimpleNamespace(update=lambda pool, head, decisions, probe: told.extend(d.subject for d in decisions))
    partitions: Any = SimpleNamespace(count=lambda topic: 3)
    made = Decision(t=60.0, pool="p", scope="node", subject="n1", state="OPEN", version=(1, 7, 1), tx="x", not_after=90.0)
    owned = Owned(JudgePartition("t", 2, factory, epoch=7, generation=1), base=None, log_offset=0, slot=0)
    step = Step(outputs=[TickOutput(60.0, "p", decisions=[made])], pools={"p"})
    publishing = asyncio.create_task(Outputs(log, partitions, projector).publish(owned, step))  # type: ignore[arg-type]
    asked = asyncio.create_task(log.asked.wait())
    await asyncio.wait([publishing, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    assert [topic for topic, *_ in log.records] == [DECISIONS.name]
    assert told == []
    log.answers[0].set_result(40)
    await publishing
    assert told == ["n1"]
    assert (owned.log_offset, set(owned.state.log.known)) == (41, {"x"})


async def test_events_that_the_judge_refuses_become_dead_letters() -> None:
    log: Any = Log()
    partitions: Any = SimpleNamespace(count=lambda topic: 3)
    state = SimpleNamespace(partition=2, new_decisions=lambda outputs: [], pools={})
    output = TickOutput(60.0, "p", rejected={"future": 1, "late": 2}, refused=[("future", b'{"ts":9e9}')])
    step: Any = SimpleNamespace(dead=[], outputs=[output], pools={"p"})
    await Outputs(log, partitions, None).publish(SimpleNamespace(state=state), step)  # type: ignore[arg-type]
    [(topic, value, headers)] = log.records
    letter = from_message(value, headers)
    assert (topic, letter.raw, letter.stage, letter.reason) == (DEADLETTER.name, b'{"ts":9e9}', "judge", "future")
    assert (letter.topic, letter.partition) == (FRAMES.name, 2)
