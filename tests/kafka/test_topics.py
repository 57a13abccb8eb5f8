import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from schemas.topics import DECISIONS, FRAMES, SNAPSHOTS, TOPICS
from streams.cli import main
from streams.embedded import EmbeddedStack


def slodrift(*args: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    return int(caught.value.code or 0)


@pytest.fixture
def no_topics(kafka_bootstrap: str, wait_until) -> Iterator[AdminClient]:  # type: ignore[no-untyped-def]
    """An administrator of a broker without our topics."""
    client = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})

    def remove() -> None:
        ours = [topic.name for topic in TOPICS if topic.name in client.list_topics(timeout=10).topics]
        for future in client.delete_topics(ours).values() if ours else ():
            future.result(20)
        wait_until(lambda: not {t.name for t in TOPICS} & set(client.list_topics(timeout=10).topics), "topics to go")

    remove()
    yield client
    remove()


@pytest.mark.kafka
def test_creates_what_is_missing_once(no_topics: AdminClient, kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert slodrift("topics", "--bootstrap", kafka_bootstrap) == 1
    assert capsys.readouterr().out.count("is not there") == len(TOPICS)
    assert slodrift("topics", "--create", "--partitions", "3", "--replication", "1", "--bootstrap", kafka_bootstrap) == 0
    assert capsys.readouterr().out.count("created") == len(TOPICS)
    assert slodrift("topics", "--create", "--partitions", "3", "--bootstrap", kafka_bootstrap) == 0
    assert "created" not in capsys.readouterr().out
    assert slodrift("topics", "--check", "--bootstrap", kafka_bootstrap) == 0
    for topic in (DECISIONS, SNAPSHOTS):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
        entries = next(iter(no_topics.describe_configs([resource]).values())).result(10)
        assert {key: entries[key].value for key in topic.config} == topic.config


@pytest.mark.kafka
def test_tells_what_differs_and_changes_nothing(
    no_topics: AdminClient, kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    no_topics.create_topics([NewTopic(FRAMES.name, 2, 1, config={"retention.ms": "1000"})])[FRAMES.name].result(10)
    assert slodrift("topics", "--create", "--partitions", "3", "--bootstrap", kafka_bootstrap) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "has 2 partitions instead of 3" in out
    assert "has retention.ms=1000 instead of 604800000" in out
    assert len(no_topics.list_topics(timeout=10).topics[FRAMES.name].partitions) == 2


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
