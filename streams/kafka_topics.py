"""Our topics on a broker: create what is missing, and tell what differs from what they should be.

A topic that exists is never changed: with another partition count every pool would move to another owner, and a setting may
have been changed on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic

from schemas.errors import SourceError
from schemas.topics import FRAMES, TOPICS, Topic
from streams.kafka import client_config, wait_for_kafka
from streams.settings import Settings

__all__ = ["TopicState", "check_topics", "create_topics"]

_REQUEST_S = 15.0
_BROKER_DEFAULT = -1


@dataclass
class TopicState:
    """One topic as it is: `partitions` 0 = not there; `faults` are sentences, none = as it should be."""

    name: str
    partitions: int = 0
    replication: int = 0
    created: bool = False
    faults: list[str] = field(default_factory=list)


def create_topics(settings: Settings, partitions: int, replication: int | None = None) -> list[TopicState]:
    """Create the topics that are missing, then check all of them.

    Args:
        settings: Where Kafka is.
        partitions: Of each topic that is created.
        replication: Copies of each partition; None leaves it to the broker (`default.replication.factor`).

    Raises:
        SourceError: Kafka is away or refuses.
    """
    metadata = wait_for_kafka(settings)
    if _is_mock(metadata):
        raise SourceError(
            f"Kafka at {settings.kafka_bootstrap} takes no CreateTopics request (librdkafka's mock cluster): "
            "the topics of an embedded stack are made when it starts"
        )
    client = AdminClient(client_config(settings))
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=partitions,
            replication_factor=_BROKER_DEFAULT if replication is None else replication,
            config=_config(topic, replication),
        )
        for topic in TOPICS
        if topic.name not in metadata.topics
    ]
    created = set()
    for name, future in client.create_topics(wanted, request_timeout=_REQUEST_S).items() if wanted else ():
        try:
            future.result()
            created.add(name)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # made by another process just now: fine
                raise SourceError(f"Kafka refuses to create {name}: {error.str()}") from None
    metadata = wait_for_kafka(settings, topics=[topic.name for topic in TOPICS])
    states = _compare(metadata, _configs(client), partitions)
    for state in states:
        state.created = state.name in created
    return states


def check_topics(settings: Settings, partitions: int | None = None) -> list[TopicState]:
    """Compare the topics with what they should be.

    Args:
        settings: Where Kafka is.
        partitions: Wanted count; None takes that of `telemetry.frames`, which the others must equal.

    Raises:
        SourceError: Kafka is away.
    """
    metadata = wait_for_kafka(settings)
    configs = {} if _is_mock(metadata) else _configs(AdminClient(client_config(settings)), metadata)
    return _compare(metadata, configs, partitions)


def _is_mock(metadata: ClusterMetadata) -> bool:
    return str(metadata.cluster_id).startswith("mockCluster")


def _config(topic: Topic, replication: int | None) -> dict[str, str]:
    """Settings of a new topic. With three copies an acknowledged message is on two of them."""
    return {**topic.config, **({"min.insync.replicas": "2"} if replication and replication >= 3 else {})}


def _configs(client: AdminClient, metadata: ClusterMetadata | None = None) -> dict[str, dict[str, str]]:
    present = [t for t in TOPICS if metadata is None or t.name in metadata.topics]
    if not present:
        return {}
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic.name) for topic in present]
    found = {}
    for resource, future in client.describe_configs(asked, request_timeout=_REQUEST_S).items():
        try:
            found[resource.name] = {entry.name: entry.value for entry in future.result().values()}
        except KafkaException as exc:
            raise SourceError(f"Kafka does not tell the settings of {resource.name}: {exc.args[0].str()}") from None
    return found


def _compare(metadata: ClusterMetadata, configs: dict[str, dict[str, str]], partitions: int | None) -> list[TopicState]:
    frames = metadata.topics.get(FRAMES.name)
    count = partitions if partitions is not None else len(frames.partitions) if frames else None
    states = []
    for topic in TOPICS:
        state = TopicState(topic.name)
        states.append(state)
        found = metadata.topics.get(topic.name)
        if found is None or not found.partitions:
            state.faults.append("is not there: run `slodrift topics --create`")
            continue
        state.partitions = len(found.partitions)
        state.replication = min(len(p.replicas) for p in found.partitions.values())
        if topic.by_pool and count is not None and state.partitions != count:
            state.faults.append(
                f"has {state.partitions} partitions instead of {count}: its pools have another owner than their frames; "
                "recreate it while nothing runs"
            )
        for key, value in topic.config.items() if topic.name in configs else ():
            actual = configs[topic.name].get(key)
            if actual != value:
                state.faults.append(f"has {key}={actual} instead of {value}: kafka-configs.sh --alter changes it")
    return states
