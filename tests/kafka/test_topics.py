import socket
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from schemas.topics import TOPICS
from streams import kafka_topics
from streams.cli import main
from streams.embedded import EmbeddedStack


def slodrift(*args: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    return int(caught.value.code or 0)


@pytest.fixture
def admin(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> AdminClient:
    """An administrator of a broker where none of our topics exists: they have names of their own for the test."""
    prefix = uuid.uuid4().hex
    mine = tuple(replace(topic, name=f"{prefix}.{topic.name}") for topic in TOPICS)
    monkeypatch.setattr(kafka_topics, "TOPICS", mine)
    monkeypatch.setattr(kafka_topics, "FRAMES", mine[0])
    return AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})


@pytest.mark.kafka
def test_creates_what_is_missing_once(admin: AdminClient, kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert slodrift("topics", "--bootstrap", kafka_bootstrap) == 1
    assert capsys.readouterr().out.count("is not there") == len(TOPICS)
    assert slodrift("topics", "--create", "--partitions", "3", "--replication", "1", "--bootstrap", kafka_bootstrap) == 0
    assert capsys.readouterr().out.count("created") == len(TOPICS)
    assert slodrift("topics", "--create", "--partitions", "3", "--bootstrap", kafka_bootstrap) == 0
    assert "created" not in capsys.readouterr().out
    assert slodrift("topics", "--check", "--bootstrap", kafka_bootstrap) == 0
    for topic in kafka_topics.TOPICS:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
        entries = next(iter(admin.describe_configs([resource]).values())).result(10)
        assert {key: entries[key].value for key in topic.config} == topic.config


@pytest.mark.kafka
def test_tells_what_differs_and_changes_nothing(
    admin: AdminClient, kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = kafka_topics.FRAMES.name
    admin.create_topics([NewTopic(frames, 2, 1, config={"retention.ms": "1000"})])[frames].result(10)
    assert slodrift("topics", "--create", "--partitions", "3", "--bootstrap", kafka_bootstrap) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "has 2 partitions instead of 3" in out
    assert "has retention.ms=1000 instead of 604800000" in out
    assert len(admin.list_topics(timeout=10).topics[frames].partitions) == 2


@pytest.mark.embedded
def test_mock_cluster_is_checked_and_says_that_it_creates_nothing(
    embedded_stack: EmbeddedStack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slodrift("topics", "--bootstrap", embedded_stack.bootstrap) == 0
    assert slodrift("topics", "--create", "--bootstrap", embedded_stack.bootstrap) == 3
    assert "mock cluster" in capsys.readouterr().err


def test_missing_broker_is_one_sentence_and_exit_3(unused_port: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from streams.cli import main; main()", "topics", "--bootstrap", f"127.0.0.1:{unused_port}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "does not answer (Connect to" in done.stderr


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
