"""A real Apache Kafka broker for tests: KRaft mode, one node, on a local JVM or in a container.

On the JVM the jars come from Maven once (pom.xml, kept in target/jars). As a program (`python tests/kafka/local_kafka.py`)
it prints the address of a broker and keeps it running until Ctrl-C.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.embedded.lifeline import die_with_parent, free_port

HERE = Path(__file__).parent
CACHE = HERE / "target"
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
IMAGE = "apache/kafka:4.0.0"
START_DEADLINE_S = 60.0


class KafkaUnavailable(Exception):
    """No broker can be had here; the message says why."""


class Broker(Protocol):
    """A broker that can be killed; `start` brings it back with its data on the same port."""

    bootstrap: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


def server_properties(host: str, port: int, controller_port: int) -> dict[str, str]:
    """Smallest sensible settings of a combined broker and controller."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{host}:{controller_port}",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": "2000",  # after a crash the controller waits so long before it lets the broker in again
        "broker.heartbeat.interval.ms": "250",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }


class JvmBroker:
    """The broker as a child process, in a temporary folder. `settings` are added; lists grow."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        java = shutil.which("java")
        if java is None:
            raise KafkaUnavailable("there is no java on the PATH")
        self._command = [java, *JVM_OPTIONS, "-cp", f"{jars()}/*"]
        self._port, self._folder = free_port(), folder
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        self.bootstrap = f"127.0.0.1:{self._port}"
        lines = {**server_properties("127.0.0.1", self._port, free_port()), "log.dirs": str(folder / "logs")}
        for key, value in (settings or {}).items():
            lines[key] = f"{lines[key]},{value}" if key in lines else value
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        _run([*self._command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(self._properties)])

    def start(self) -> None:
        """Start and wait until it answers."""
        log = self._folder / "broker.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent(),  # noqa: PLW1509
            )  # fmt: skip
        deadline = time.monotonic() + START_DEADLINE_S
        while not answers(self.bootstrap):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise KafkaUnavailable(f"the broker does not start:\n{log.read_text()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(how)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ContainerBroker:
    """The official image, through testcontainers."""

    def __init__(self) -> None:
        if shutil.which("docker") is None:
            raise KafkaUnavailable("there is no docker on the PATH")
        _run(["docker", "version", "--format", "{{.Server.Version}}"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from testcontainers.core.container import DockerContainer
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self._container: Any = DockerContainer(IMAGE).with_bind_ports(port, port)
        for key, value in server_properties("localhost", port, 9093).items():
            self._container.with_env("KAFKA_" + key.upper().replace(".", "_"), value)
        self._created = False

    def start(self) -> None:
        """Start and wait until it answers."""
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True
        deadline = time.monotonic() + START_DEADLINE_S
        while not answers(self.bootstrap):
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"the container does not answer: {self._container.get_logs()}")

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._container.get_wrapped_container().kill()

    def stop(self) -> None:
        """Stop and remove the container."""
        self._container.stop()


def answers(bootstrap: str, timeout_s: float = 1.0) -> bool:
    """True when a broker gives its metadata within `timeout_s`."""
    try:
        return bool(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def jars() -> Path:
    """Folder with the jars of the broker, resolved by Maven unless that was done for this pom.xml."""
    pom = HERE / "pom.xml"
    want = hashlib.sha256(pom.read_bytes()).hexdigest()
    done, folder = CACHE / "jars.sha256", CACHE / "jars"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test runners in parallel share the folder
        if not done.exists() or done.read_text() != want:
            if shutil.which("mvn") is None:
                raise KafkaUnavailable("the broker's jars are not here and there is no mvn on the PATH to get them")
            shutil.rmtree(folder, ignore_errors=True)
            _run(["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"])
            done.write_text(want)
    return folder


@contextlib.contextmanager
def local_kafka(*, containers: bool = True) -> Iterator[Broker]:
    """A running broker: in a container when a Docker daemon answers, else on the JVM.

    Raises:
        KafkaUnavailable: With the reasons of both.
    """
    with tempfile.TemporaryDirectory(prefix="slodrift-kafka-") as folder:
        reasons, broker = [], None
        for make in ([ContainerBroker] if containers else []) + [lambda: JvmBroker(Path(folder))]:
            try:
                broker = make()
                break
            except (KafkaUnavailable, ImportError) as exc:
                reasons.append(str(exc))
        if broker is None:
            raise KafkaUnavailable("; ".join(reasons))
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(f"{' '.join(command[:2])} fails: {(done.stdout + done.stderr).strip()[-500:]}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with local_kafka() as running, contextlib.suppress(KeyboardInterrupt):
        print(running.bootstrap, flush=True)
        signal.pause()
