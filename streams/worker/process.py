"""One worker process: waits for its servers, runs judge and archive, watches them, and ends cleanly.

Judge and archive are two Faust apps with two consumer groups; together in one process they only share it (the embedded
ClickHouse engine allows one process per folder).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from faust.types import TP

from schemas.errors import SlodriftError, SourceError
from schemas.signing import load_signer
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, FRAMES, SNAPSHOTS, WINDOWS
from sinks.clickhouse import ClickHouse, ClickHouseWriter
from sinks.migrate import migrate
from sinks.reconcile import Reconciler
from sinks.redis_decisions import DecisionSink, connect
from streams.kafka import BrokerWatch, Partitions, wait_for_kafka
from streams.settings import Settings
from streams.worker.app import WorkerApp, make_app
from streams.worker.archive_agent import ArchiveAgent
from streams.worker.archive_rows import ARCHIVED
from streams.worker.broker_view import BrokerView
from streams.worker.judge_agent import JudgeAgent, JudgeTimes
from streams.worker.outputs import Outputs
from streams.worker.ownership import Ownership
from streams.worker.partition import JudgeFactory
from streams.worker.producer import LogProducer
from streams.worker.projector import Projector
from streams.worker.reconcile import reconcile
from streams.worker.snapshot_writer import SnapshotWriter
from streams.worker.takeover import Takeover
from streams.worker.watchdog import Observation, Watchdog

__all__ = ["ROLES", "WorkerProcess"]

log = structlog.get_logger(__name__)

ROLES = ("judge", "archive")
_CO_PARTITIONED = (FRAMES, WINDOWS, FINDINGS, DECISIONS)
_STOP_S = 8.0


class WorkerProcess:
    """Runs until `stop`.

    Args:
        settings: Servers and periods.
        roles: Of `ROLES`.
        factory: Makes judges.
        clickhouse: Shared connection, if the caller wants to read through it; by default one of our own.
    """

    def __init__(
        self, settings: Settings, roles: Iterable[str], factory: JudgeFactory, *, clickhouse: ClickHouse | None = None
    ) -> None:
        self._settings = settings
        self._roles = frozenset(roles)
        self._factory = factory
        self._clickhouse = clickhouse
        self._stopping = asyncio.Event()
        self._stopping_thread = threading.Event()
        self._fatal: str | None = None
        self._apps: list[WorkerApp] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], Awaitable[Any]]] = []
        self._releases: list[Callable[[], Awaitable[None]]] = []

    def stop(self) -> None:
        """End the process cleanly; call it in its loop."""
        self._stopping.set()
        self._stopping_thread.set()

    async def run(self, ready: Callable[[list[int]], None] = lambda partitions: None) -> None:
        """Work.

        Args:
            ready: Called once, with the judged partitions, when everything assigned to us is restored.

        Raises:
            SlodriftError: It cannot go on; a supervisor should start it again.
        """
        try:
            counts = await self._wait_for_kafka()
        except SourceError:
            return  # stopped before there was anything to do
        try:
            await self._unless_stopped(self._start(counts, ready))
            await self._stopping.wait()
        finally:
            await self._end()
        if self._fatal is not None:
            raise SlodriftError(self._fatal)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, but leave it when the process is to end: joining a group can take as long as a session."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
        finally:
            for pending in (task, stopping):
                pending.cancel()
            await asyncio.wait([task, stopping], timeout=1.0)

    def _give_up(self, reason: str) -> None:
        if self._fatal is None:
            self._fatal = reason
            self.stop()

    # -- start -----------------------------------------------------------------------------------------------------------------

    async def _wait_for_kafka(self) -> Partitions:
        needed = [t.name for t in (*_CO_PARTITIONED, DEADLETTER)]
        metadata = await asyncio.to_thread(
            wait_for_kafka, self._settings, topics=needed, deadline_s=None, stop=self._stopping_thread
        )
        with_snapshots = SNAPSHOTS.name in metadata.topics and not metadata.topics[SNAPSHOTS.name].error
        counts = Partitions(metadata, [*needed, *([SNAPSHOTS.name] if with_snapshots else [])])
        n = counts.count(FRAMES.name)
        for topic in (*_CO_PARTITIONED, *([SNAPSHOTS] if with_snapshots else [])):
            if counts.count(topic.name) != n:
                raise SlodriftError(
                    f"topic {topic.name} has {counts.count(topic.name)} partitions and {FRAMES.name} has {n}: a pool has the "
                    "same partition in all of them, so make the counts equal (a count only grows, and that moves pools)"
                )
        self._with_snapshots = with_snapshots
        return counts

    async def _start(self, counts: Partitions, ready: Callable[[list[int]], None]) -> None:
        watch = BrokerWatch(self._settings)
        producer = LogProducer(self._settings, watch)
        self._closers.append(producer.close)
        start: dict[str, Callable[..., Awaitable[JudgeAgent | ArchiveAgent]]]
        start = {"judge": self._start_judge, "archive": self._start_archive}
        self._spawn(self._watch_apps())  # before the apps: their start ends only with the first assignment
        agents = await asyncio.gather(*(start[role](counts, producer) for role in sorted(self._roles)))
        self._spawn(_announce(agents, ready))

    async def _start_judge(self, counts: Partitions, producer: LogProducer) -> JudgeAgent:
        settings = self._settings
        app = make_app(settings, settings.judge_group)
        partitions = [TP(FRAMES.name, p) for p in range(counts.count(FRAMES.name))]
        view = BrokerView(settings, settings.judge_group, partitions)
        self._closers.append(view.close)
        blind_s = max(settings.kafka_session_timeout_s, 5.0)
        signer = None if settings.signing_key_file is None else load_signer(settings.signing_key_file)
        if signer is not None:
            log.info("heads are signed", key_id=signer.key_id)
        redis = DecisionSink(connect(settings.redis_url.get_secret_value()), settings.fleet, signer=signer)
        self._closers.append(redis.close)
        ownership = Ownership(settings, counts.count(DECISIONS.name), lambda partition: judge.epoch_of(partition))  # noqa: PLW0108 - made below
        projector = Projector(redis, may_speak=lambda: view.silent_s() < blind_s, owns=ownership.owns)
        outputs = Outputs(producer, counts, projector)
        takeover = Takeover(
            settings, producer, self._factory, generation=settings.generation, with_snapshots=self._with_snapshots
        )
        if not self._with_snapshots:
            log.warning("no snapshot topic: after a restart baselines are learnt anew", topic=SNAPSHOTS.name,
                        do="slodrift topics --create")  # fmt: skip
        writer = SnapshotWriter(producer) if self._with_snapshots else None
        times = JudgeTimes(snapshot_s=settings.snapshot_s, idle_s=settings.idle_s)
        judge = JudgeAgent(app, takeover, outputs, writer, times, now_ms=_now_ms, on_fatal=self._give_up)
        judge.attach()
        self._releases.append(judge.release)
        self._spawn(projector.run())
        self._spawn(_every_second(judge.every_second))
        self._spawn(self._guard(view, judge, set, settings.snapshot_s))
        await self._run_app(app)
        return judge

    async def _start_archive(self, counts: Partitions, producer: LogProducer) -> ArchiveAgent:
        settings = self._settings
        dsn = settings.clickhouse_dsn.get_secret_value()
        if dsn.startswith("chdb:"):  # nobody else can open the folder, so nobody else can migrate it
            await asyncio.to_thread(migrate, dsn)
        clickhouse = self._clickhouse or ClickHouse(dsn)
        if self._clickhouse is None:
            self._closers.append(lambda: asyncio.to_thread(clickhouse.close))
        app = make_app(settings, settings.archive_group)
        partitions = [TP(topic, p) for topic in ARCHIVED for p in range(counts.count(topic))]
        view = BrokerView(settings, settings.archive_group, partitions)
        self._closers.append(view.close)
        outputs = Outputs(producer, counts, None)
        reconciler = Reconciler(ClickHouseWriter(clickhouse), clickhouse, _now_ms)
        archive = ArchiveAgent(
            app, settings, reconciler, dead_letter=outputs.dead_letter, settled=outputs.settled,
            on_fatal=self._give_up,
        )  # fmt: skip
        archive.attach()
        self._releases.append(archive.release)
        self._spawn(_every_second(archive.every_second))
        self._spawn(reconcile(reconciler, view))
        self._spawn(self._guard(view, archive, lambda: archive.waiting, 1.0))
        await self._run_app(app)
        return archive

    async def _run_app(self, app: WorkerApp) -> None:
        self._apps.append(app)
        try:
            await app.start()
        except Exception as exc:
            raise SlodriftError(f"the worker of group {app.conf.id} does not start: {type(exc).__name__}: {exc}") from None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the worker failed", exc_info=error)
            self._give_up(f"a task of the worker failed: {type(error).__name__}: {error}")

    # -- watching ----------------------------------------------------------------------------------------------------------------

    async def _guard(
        self, view: BrokerView, agent: JudgeAgent | ArchiveAgent, waiting: Callable[[], set[TP]], commit_every_s: float
    ) -> None:
        """End the process when it does not get on."""
        dog = Watchdog(self._settings.kafka_session_timeout_s, commit_every_s, time.monotonic)
        while True:
            await view.refresh()
            done = agent.done
            seen = Observation(
                assigned={_name(tp) for tp in done},
                ends=None if view.ends is None else {_name(tp): end for tp, end in view.ends.items()},
                done={_name(tp): offset for tp, offset in done.items()},
                committed={_name(tp): offset for tp, offset in view.committed.items()},
                waiting={_name(tp) for tp in waiting()},
            )
            if reason := dog.look(seen):
                self._give_up(reason)
                return
            await asyncio.sleep(1.0)

    async def _watch_apps(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for app in [app for app in self._apps if app.started]:
                failure = app.transport.failure or app.crash_reason
                error = None if app.should_stop else await _group_error(app)
                if isinstance(error, TopicAuthorizationFailedError | GroupAuthorizationFailedError):
                    failure = error
                elif error is not None:
                    log.warning("the consumer group answered with an error, joining again", group=app.conf.id, cause=str(error))
                if failure is not None or app.crashed or app.should_stop:
                    self._give_up(f"the consumer of group {app.conf.id} has ended: {type(failure).__name__}: {failure}")
                    return

    # -- end -------------------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Give partitions up with a last snapshot, leave the groups, close everything; no step keeps the others from it."""
        running = {task for task in self._tasks if not task.done()}
        for _ in range(5):  # libraries have been seen to swallow a cancellation that meets a timeout of theirs
            for task in running:
                task.cancel()
            if running:
                _, running = await asyncio.wait(running, timeout=0.3)
        steps: list[Callable[[], Awaitable[Any]]] = [*self._releases, *(app.stop for app in self._apps), *self._closers[::-1]]
        end = asyncio.get_running_loop().time() + _STOP_S
        for step in steps:
            try:
                async with asyncio.timeout_at(end):
                    results = await asyncio.gather(step(), return_exceptions=True)
            except TimeoutError:
                log.warning("not everything could be closed in time")
                return
            log.debug("closed", step=getattr(step, "__qualname__", ""), left_s=round(end - asyncio.get_running_loop().time(), 2))
            if isinstance(results[0], Exception):
                log.error("something could not be closed", cause=f"{type(results[0]).__name__}: {results[0]}")


async def _announce(agents: Iterable[JudgeAgent | ArchiveAgent], ready: Callable[[list[int]], None]) -> None:
    partitions: list[int] = []
    for agent in agents:
        await agent.assigned.wait()
        await agent.restored()
        if isinstance(agent, JudgeAgent):
            partitions = agent.partitions
    ready(partitions)


async def _every_second(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(1.0)
        await work()


async def _group_error(app: WorkerApp) -> KafkaError | None:
    try:
        async with asyncio.timeout(2.0):
            error: KafkaError | None = await app.consumer.group_error()
            return error
    except TimeoutError:
        return None  # the consumer's thread is busy; the watchdog ends a worker that stays so


def _name(tp: TP) -> str:
    return f"{tp.topic}[{tp.partition}]"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
