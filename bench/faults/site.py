"""Everything that a fault can hit, running: Kafka, Redis, ClickHouse behind proxies; framer, judge, archive; serving hosts."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.faults.hosts import FLEET, Hosts
from bench.faults.log_tail import LogTail, Progress
from bench.faults.processes import ROOT, ChDbServer, Child
from bench.faults.proxy import Proxy, ProxyLoop
from bench.faults.workload import load, policy_file
from schemas.topics import TELEMETRY, TOPICS, partition_of
from sinks.clickhouse import ClickHouse
from sinks.migrate import migrate
from streams.embedded import EmbeddedStack
from streams.settings import Settings

__all__ = ["N_PARTITIONS", "Failed", "Site", "wait_for"]

N_PARTITIONS = 4


class Failed(Exception):
    """A fault did not go as it must."""


def wait_for(look: Callable[[], Any], what: str, deadline_s: float) -> float:
    """Seconds until `look` gives something true.

    Raises:
        Failed: Not within `deadline_s`.
    """
    pause, began = threading.Event(), time.monotonic()
    while not look():
        if time.monotonic() - began > deadline_s:
            raise Failed(f"not within {deadline_s:g} s: {what}")
        pause.wait(0.02)
    return time.monotonic() - began


class Site:
    """Context manager; inside `with` everything runs.

    Args:
        pools: Pools that hosts follow.
        n_hosts: Serving hosts.
        real_kafka: An Apache Kafka instead of the mock cluster.
        clickhouse_folder: Where the engine keeps its parts; a temporary folder by default.
        environ: More settings of the workers.
    """

    def __init__(
        self,
        pools: Sequence[str],
        *,
        n_hosts: int = 8,
        real_kafka: bool = False,
        clickhouse_folder: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self._pools, self._n_hosts, self._real = list(pools), n_hosts, real_kafka
        self._clickhouse_folder = clickhouse_folder
        self._more = environ or {}
        self._exits = ExitStack()
        self.children: list[Child] = []
        self.restarts = 0
        self.broker: Any = None
        self.kafka_proxy: Proxy | None = None

    def __enter__(self) -> Site:
        try:
            self._start()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _start(self) -> None:
        keep = self._exits.callback
        self.folder = Path(tempfile.mkdtemp(prefix="slodrift-faults-"))
        keep(shutil.rmtree, self.folder, ignore_errors=True)
        self.policy = load(self.folder)
        self.loop = ProxyLoop()
        keep(self.loop.close)
        self.stack = self._exits.enter_context(EmbeddedStack(partitions=N_PARTITIONS, fleet=FLEET))
        self.environ = {
            **self.stack.environ, "SLODRIFT_SNAPSHOT_S": "1", "SLODRIFT_IDLE_S": "3600", "SLODRIFT_ARCHIVE_QUIET_S": "0",
            "SLODRIFT_POLICY_FILE": str(policy_file(self.folder)), **self._more,
        }  # fmt: skip
        if self._real:
            self._start_kafka()
        self.redis_port = int(self.stack.redis_url.rsplit(":", 1)[1].split("/")[0])
        self.clickhouse = ChDbServer(self._clickhouse_folder or self.folder / "clickhouse")
        self.clickhouse.start()
        keep(self.clickhouse.kill)
        self.judge_redis, self.clickhouse_proxy = self.loop.proxy(self.redis_port), self.loop.proxy(self.clickhouse.port)
        self.environ |= {
            "SLODRIFT_REDIS_URL": f"redis://127.0.0.1:{self.judge_redis.port}/0",
            "SLODRIFT_CLICKHOUSE_DSN": f"clickhouse://default@127.0.0.1:{self.clickhouse_proxy.port}/slodrift",
            "SLODRIFT_SIGNING_KEY_FILE": str(self._make_key()),
        }
        self.settings = Settings(**{k.removeprefix("SLODRIFT_").lower(): v for k, v in self.environ.items()})  # type: ignore[arg-type]
        self.reader = ClickHouse(f"clickhouse://default@127.0.0.1:{self.clickhouse.port}/slodrift")
        keep(self.reader.close)
        migrate(f"clickhouse://default@127.0.0.1:{self.clickhouse.port}/slodrift")
        self.tail = LogTail(self.settings, N_PARTITIONS)
        keep(self.tail.close)
        self.progress = Progress(self.settings, N_PARTITIONS)
        keep(self.progress.close)
        config = {"bootstrap.servers": self.settings.kafka_bootstrap, "log_level": 0, "linger.ms": 5, "compression.type": "lz4"}
        self.producer = Producer({**config, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 0})
        keep(self._end_children)
        self.judge, self.archive, self.framer = self.start("judge"), self.start("archive"), self.start("framer")
        self.hosts = Hosts(
            lambda: self.loop.proxy(self.redis_port), self._pools, self.folder / "hosts", self._n_hosts, self.public_key
        )
        keep(self.hosts.close)
        self.judge.wait_ready(60)
        self.archive.wait_ready(60)

    def start(self, role: str, *, command: Sequence[str] = (), **environ: str) -> Child:
        """Start one more process; not waited for."""
        child = Child(role, {**self.environ, **environ}, command=command)
        child.spawn()
        self.children.append(child)
        return child

    def restart(self, role: str) -> Child:
        """A new process in the place of the former one."""
        child = self.start(role)
        setattr(self, role, child)
        return child

    def produce(self, topic: str, raw: bytes, pool: str = "", partition: int | None = None) -> None:
        """One message to the partition of its pool, waiting while the producer's queue is full."""
        where = partition_of(pool, N_PARTITIONS) if partition is None else partition
        while True:
            try:
                self.producer.produce(topic, raw, partition=where)
                self.producer.poll(0)
                return
            except BufferError:
                self.producer.poll(0.1)

    def supervise(self) -> None:
        """What a supervisor does: a process that has ended is started again."""
        for role in ("judge", "archive", "framer"):
            if not getattr(self, role).alive:
                self.restarts += 1
                self.restart(role)

    def heal(self) -> None:
        """After a row that failed: nothing in the way any more, and everything runs again."""
        proxies = [self.judge_redis, self.clickhouse_proxy, *(host.proxy for host in self.hosts)]
        for proxy in [*proxies, *([self.kafka_proxy] if self.kafka_proxy else [])]:
            proxy.heal()
        for role in ("judge", "archive", "framer"):
            child: Child = getattr(self, role)
            child.resume()
            if not child.alive:
                self.restart(role)
        for host in self.hosts:
            if host.client is None:
                host.start()

    def said(self) -> str:
        """Last words of all processes."""
        return "\n".join(f"-- {c.role} {c.process.poll() if c.process else ''}\n{c.said[-1500:]}" for c in self.children[-6:])

    def _end_children(self) -> None:
        for child in self.children:
            if child.alive:
                child.resume()
                child.kill()

    def _make_key(self) -> Path:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        key = Ed25519PrivateKey.generate()
        self.public_key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        path = self.folder / "key.pem"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.chmod(0o600)
        return path

    def _start_kafka(self) -> None:
        """A broker whose clients come through a proxy."""
        sys.path.append(str(ROOT / "tests" / "kafka"))
        from local_kafka import JvmBroker

        folder = self.folder / "kafka"
        folder.mkdir()
        proxy = self.kafka_proxy = self.loop.proxy(0)
        self.broker = JvmBroker(folder)
        proxy.target = int(self.broker.bootstrap.rsplit(":", 1)[1])
        properties = folder / "server.properties"
        properties.write_text(
            properties.read_text().replace(f"advertised.listeners=PLAINTEXT://{self.broker.bootstrap}",
                                           f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}")
        )  # fmt: skip
        self.broker.start()
        self._exits.callback(self.broker.kill)
        self.environ |= {
            "SLODRIFT_KAFKA_BOOTSTRAP": f"127.0.0.1:{proxy.port}",
            "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": "6", "SLODRIFT_KAFKA_FETCH_WAIT_S": "0.1",
        }  # fmt: skip
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{proxy.port}", "log_level": 0})
        made = admin.create_topics([NewTopic(t.name, N_PARTITIONS, 1, config=t.config) for t in TOPICS])
        for future in made.values():
            future.result(30)


REQUESTS = TELEMETRY[0].name
