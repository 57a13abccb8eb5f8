"""Where the live benchmarks run: the embedded stack, or a real Apache Kafka beside its Redis; and a worker's counters."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from schemas.errors import SlodriftError, SourceError
from schemas.topics import FRAMES
from streams.embedded import EmbeddedStack
from streams.embedded.lifeline import free_port
from streams.kafka import client_config
from streams.kafka_topics import create_topics
from streams.settings import Settings
from streams.worker.child import WorkerChild

__all__ = ["Counters", "Stand", "cpu_s", "open_stand", "rss_bytes"]

_BROKER = {"log.retention.check.interval.ms": "5000"}
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.M)


@dataclass
class Stand:
    """Servers of one run. `environ` makes a worker use them; `broker` says in words which Kafka it is."""

    environ: dict[str, str]
    partitions: int
    redis_url: str
    broker: str

    @property
    def settings(self) -> Settings:
        """The same as settings of this process."""
        return Settings(**{name.removeprefix("SLODRIFT_").lower(): value for name, value in self.environ.items()})  # type: ignore[arg-type]

    def judge(self, *args: str, **environ: str) -> tuple[WorkerChild, Counters]:
        """A judge that is not started, and where its counters will be; `environ` without the prefix, in lower case."""
        port = free_port()
        more = {f"SLODRIFT_{name.upper()}": value for name, value in environ.items()}
        return WorkerChild("judge", {**self.environ, **more}, ["--metrics-port", str(port), *args]), Counters(port)


@contextlib.contextmanager
def open_stand(*, kafka: bool, partitions: int) -> Iterator[Stand]:
    """Servers with our topics, empty.

    Args:
        kafka: A real Kafka on a local JVM (or in a container) instead of librdkafka's mock cluster.
        partitions: Of every topic.

    Raises:
        SourceError: There is no Kafka to be had here.
    """
    group = {"SLODRIFT_JUDGE_GROUP": f"bench-{time.time_ns()}", "SLODRIFT_IDLE_S": "3600"}
    with EmbeddedStack(partitions=partitions) as stack, contextlib.ExitStack() as more:
        environ, broker = {**stack.environ, **group}, "librdkafka's mock cluster"
        if kafka:
            module = _local_kafka()
            folder = more.enter_context(tempfile.TemporaryDirectory(prefix="slodrift-kafka-"))
            try:
                real = module.JvmBroker(Path(folder), _BROKER)
                more.callback(real.stop)
                real.start()
            except module.KafkaUnavailable as exc:
                raise SourceError(f"no Kafka can be started here: {exc}") from None
            environ |= {
                "SLODRIFT_KAFKA_BOOTSTRAP": real.bootstrap, "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": "10",
                "SLODRIFT_KAFKA_FETCH_WAIT_S": "0.5",
            }  # fmt: skip
            broker = "Apache Kafka on this machine"
        stand = Stand(environ, partitions, stack.redis_url, broker)
        if kafka:
            create_topics(stand.settings, partitions, 1)
            _keep_little(stand.settings)
        yield stand


def _keep_little(settings: Settings) -> None:
    """A long run writes gigabytes of frames; a quarter of a gigabyte a partition is kept."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, FRAMES.name)
    for name, value in (("retention.bytes", str(256 << 20)), ("segment.bytes", str(64 << 20))):
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient(client_config(settings))  # while it is waited for: without it the answers are cancelled
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)


def _local_kafka() -> Any:
    """The module that starts a broker for the tests."""
    path = Path(__file__).resolve().parents[1] / "tests" / "kafka" / "local_kafka.py"
    spec = importlib.util.spec_from_file_location("local_kafka", path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path} is not there: the live benchmarks need a source checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Counters:
    """What a worker counts, read from its Prometheus port."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def read(self) -> dict[str, float]:
        """Value of each sample, by name and labels as they are written (`name` or `name{labels}`); empty while nobody answers."""
        try:
            with urllib.request.urlopen(self._url, timeout=2) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return {}
        return {f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in _SAMPLE.findall(text)}

    def wait_for(self, name: str, at_least: float, deadline_s: float) -> float:
        """Wait until a counter has a value; returns it.

        Raises:
            SlodriftError: Not within `deadline_s`.
        """
        end = time.monotonic() + deadline_s
        while (value := self.read().get(name, 0.0)) < at_least:
            if time.monotonic() > end:
                raise SlodriftError(f"{name} is {value:,.0f} after {deadline_s:g} s, {at_least:,.0f} were expected")
            time.sleep(0.05)
        return value


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
