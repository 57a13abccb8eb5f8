"""Results of a step on their way to Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from schemas.deadletter import from_message
from schemas.topics import DEADLETTER, FRAMES
from streams.judge.results import TickOutput
from streams.worker.outputs import Outputs


class Log:
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, Any]] = []

    async def append(self, topic: str, value: bytes, *, headers: Any = (), **_: Any) -> Any:
        self.records.append((topic, value, headers))
        appended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        appended.set_result(len(self.records) - 1)
        return appended


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
