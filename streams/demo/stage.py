"""Sets the stage: the embedded stack, then framer, judge and archive as processes of their own, as on a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.errors import SlodriftError
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, WINDOWS
from streams.demo.processes import Command
from streams.embedded import EmbeddedStack
from streams.kafka import client_config
from streams.settings import Settings

__all__ = ["POLICY_FILE", "WORKERS", "Stage", "set_stage"]

POLICY_FILE = Path(str(resources.files("streams.demo") / "policy.yaml"))
WORKERS = {"judge": ("worker", "judge"), "archive": ("worker", "archive"), "framer": ("framer",)}
"""Command of each role, the same as in `docker-compose.yml`."""
_ARCHIVED = (WINDOWS.name, FINDINGS.name, DECISIONS.name, DEADLETTER.name)


@dataclass
class Stage:
    """What runs.

    Attributes:
        settings: Where everything is.
        workers: Running commands by role.
    """

    settings: Settings
    workers: dict[str, Command]

    def check(self) -> None:
        """Raises when a worker has ended."""
        for worker in self.workers.values():
            worker.check()

    def stop_judging(self) -> None:
        """End framer and judge; the archive goes on until it has stored everything."""
        for role in ("framer", "judge"):
            self.workers.pop(role).stop()

    def stop_archive(self) -> None:
        """End the archive, which gives the embedded ClickHouse engine free."""
        self.workers.pop("archive").stop()

    def archived(self) -> bool:
        """Whether the archive has stored everything that is in its topics, by its committed offsets."""
        consumer = Consumer({**client_config(self.settings), "group.id": self.settings.archive_group})
        try:
            metadata = consumer.list_topics(timeout=5)
            partitions = [TopicPartition(name, p) for name in _ARCHIVED for p in metadata.topics[name].partitions]
            committed = {(c.topic, c.partition): c.offset for c in consumer.committed(partitions, timeout=5)}
            for partition in partitions:
                low, high = consumer.get_watermark_offsets(partition, timeout=5)
                if high > low and committed[partition.topic, partition.partition] < high:
                    return False
            return True
        except KafkaException:
            return False
        finally:
            consumer.close()


@contextlib.contextmanager
def set_stage(policy_file: Path, started: Callable[[str], None]) -> Iterator[Stage]:
    """Everything runs inside `with`; nothing is left afterwards.

    Args:
        policy_file: Policy of the judge.
        started: Called with a word about each thing that runs.

    Raises:
        SlodriftError: Something does not start.
    """
    with ExitStack() as exits:
        stack = exits.enter_context(EmbeddedStack(fleet="demo"))
        started(f"Kafka (mock cluster) at {stack.bootstrap} and Redis at {stack.redis_url}")
        environ = {**stack.environ, "SLODRIFT_POLICY_FILE": str(policy_file)}

        def start(role: str) -> Command:
            return exits.enter_context(Command(WORKERS[role], environ, stack.folder / f"{role}.log"))

        workers = {"judge": start("judge"), "framer": start("framer")}
        _migrate(environ, stack.folder)  # the archive comes after it: one process at a time may open the chDB folder
        started("ClickHouse (chDB engine) has its tables, Redis its function library")
        workers["archive"] = start("archive")
        started(f"{', '.join(worker.name for worker in workers.values())} are running")
        yield Stage(stack.settings, workers)


def _migrate(environ: Mapping[str, str], folder: Path) -> None:
    migrate = Command(["migrate"], environ, folder / "migrate.log")
    if migrate.wait(60.0):
        raise SlodriftError(f"slodrift migrate failed: {migrate.last_words()}")
