import uuid

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from local_kafka import Broker

pytestmark = pytest.mark.kafka


def test_messages_survive_a_killed_broker(kafka_broker: Broker) -> None:
    topic = f"durable-{uuid.uuid4().hex}"
    quiet = {"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0}
    admin = AdminClient(quiet)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    producer = confluent_kafka.Producer({**quiet, "acks": "all", "linger.ms": 0})
    producer.produce(topic, b"before", partition=0)
    assert producer.flush(10) == 0
    kafka_broker.kill()
    producer.produce(topic, b"during", partition=0)
    assert producer.flush(0.2) == 1
    kafka_broker.start()
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**quiet, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert [m.value() for m in consumer.consume(2, timeout=20)] == [b"before", b"during"]
    consumer.close()
