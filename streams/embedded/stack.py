"""Kafka, Redis and ClickHouse for one machine and one session, from the Python package index alone.

Kafka is librdkafka's mock cluster and Redis a real server, both behind one child process. ClickHouse is the chDB engine,
which has no server: whoever archives opens `clickhouse_dsn`. One process may open one chDB path, and a path only one process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from schemas.errors import ConfigError
from schemas.topics import TOPICS, Topic
from streams.settings import Settings

__all__ = ["EmbeddedStack"]

_STOP_DEADLINE_S = 5.0


class EmbeddedStack:
    """Context manager: the servers run inside `with`, and nothing of them is left afterwards.

    Args:
        partitions: Of every topic.
        topics: Created at the start (the mock cluster has no CreateTopics request).
        brokers: Mock brokers, numbered from 1.
        redis: False leaves Redis out.
        fleet: Name of the fleet in `settings` and `environ`.

    Attributes:
        bootstrap: Kafka addresses.
        redis_url: Address of Redis, "" without one.
        clickhouse_dsn: `chdb://` address of an empty ClickHouse database.
        folder: Temporary folder, removed at the end.
    """

    def __init__(
        self,
        *,
        partitions: int = 4,
        topics: Iterable[Topic] = TOPICS,
        brokers: int = 1,
        redis: bool = True,
        fleet: str = "embedded",
    ) -> None:
        self._options: dict[str, Any] = {"brokers": brokers, "redis": redis, "topics": {t.name: partitions for t in topics}}
        self._fleet = fleet
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self.redis_url = ""
        self.clickhouse_dsn = ""
        self.folder = Path()

    def __enter__(self) -> EmbeddedStack:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the servers and wait until they answer.

        Raises:
            ConfigError: Something that is needed is not installed, or does not start.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="slodrift-"))
        options = json.dumps({**self._options, "folder": str(self.folder)})
        self._child = subprocess.Popen(
            [sys.executable, "-m", "streams.embedded.servers", options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            listening = self._answer()
        except ConfigError:
            self.stop()
            raise
        self.bootstrap, self.redis_url = listening["bootstrap"], listening["redis_url"]
        self.clickhouse_dsn = f"chdb://{self.folder / 'clickhouse'}"

    def stop(self) -> None:
        """Stop the servers and remove the folder; a second call does nothing."""
        if self._child is None:
            return
        child, self._child = self._child, None
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018, S101
        child.stdin.close()
        try:
            child.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # whatever the chDB engine wrote after the child's end

    @property
    def environ(self) -> dict[str, str]:
        """Variables that make any `slodrift` process use this stack."""
        return {
            "SLODRIFT_FLEET": self._fleet,
            "SLODRIFT_KAFKA_BOOTSTRAP": self.bootstrap,
            "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": "3",  # after a clean leave the mock waits this long before the next join
            "SLODRIFT_KAFKA_FETCH_WAIT_S": "0.005",  # the mock does not wake a waiting fetch
            "SLODRIFT_REDIS_URL": self.redis_url or "redis://127.0.0.1:1/0",
            "SLODRIFT_CLICKHOUSE_DSN": self.clickhouse_dsn,
        }

    @property
    def settings(self) -> Settings:
        """The same as settings of this process."""
        return Settings(**{name.removeprefix("SLODRIFT_").lower(): value for name, value in self.environ.items()})  # type: ignore[arg-type]

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Create a topic on the mock cluster."""
        self._call("create_topic", name, partitions)

    def broker_down(self, broker: int = 1) -> None:
        """Take a Kafka broker away; what it kept comes back with `broker_up`."""
        self._call("broker_down", broker)

    def broker_up(self, broker: int = 1) -> None:
        """Bring a Kafka broker back."""
        self._call("broker_up", broker)

    def set_rtt(self, rtt_ms: int, broker: int = 1) -> None:
        """Delay every answer of a Kafka broker."""
        self._call("set_rtt", broker, rtt_ms)

    def push_errors(self, api_key: int, errors: list[int]) -> None:
        """Answer the next Kafka requests of this kind (0 Produce, 1 Fetch, 8 OffsetCommit ...) with these error codes."""
        self._call("push_errors", api_key, errors)

    def clear_errors(self, api_key: int) -> None:
        """Forget pushed errors that were not given yet."""
        self._call("clear_errors", api_key)

    def redis_stop(self) -> None:
        """Kill Redis; its data are gone."""
        self._call("redis_stop")

    def redis_start(self) -> None:
        """Start an empty Redis on the same port."""
        self._call("redis_start")

    def _call(self, command: str, *args: Any) -> None:
        with self._lock:
            if self._child is None or self._child.stdin is None:
                raise RuntimeError("the embedded stack is not running")
            self._child.stdin.write(json.dumps({"do": command, "args": args}) + "\n")
            self._child.stdin.flush()
            self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child is not None and self._child.stdout is not None  # noqa: PT018, S101
        line = self._child.stdout.readline()
        if not line:
            raise ConfigError(f"the process of the embedded stack ended with code {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ConfigError(f"embedded stack: {answer['error']}")
        return answer
