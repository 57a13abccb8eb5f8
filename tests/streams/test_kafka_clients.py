import threading

import pytest
from confluent_kafka import KafkaError

from schemas.errors import SourceError
from schemas.topics import FRAMES, partition_of
from streams.embedded import EmbeddedStack
from streams.embedded.lifeline import free_port
from streams.kafka import Deliveries, Partitions, client_config, make_producer, wait_for_kafka
from streams.settings import Settings


def test_absent_broker_is_one_sentence_with_the_reason() -> None:
    with pytest.raises(SourceError) as caught:
        wait_for_kafka(Settings(kafka_bootstrap=f"127.0.0.1:{free_port()}"), deadline_s=0.5)
    assert str(caught.value).count("\n") == 0
    assert "does not answer (Connect to" in str(caught.value)
    assert "SLODRIFT_KAFKA_BOOTSTRAP" in str(caught.value)


def test_a_wait_without_end_is_ended_by_stop() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(SourceError, match="stopped"):
        wait_for_kafka(Settings(kafka_bootstrap=f"127.0.0.1:{free_port()}"), deadline_s=None, stop=stop)


def test_security_reaches_the_clients() -> None:
    settings = Settings(
        kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="SCRAM-SHA-512", kafka_sasl_username="u",
        kafka_sasl_password="p", kafka_tls_ca_file="/ca.pem",
    )  # type: ignore[arg-type]  # fmt: skip
    config = client_config(settings)
    assert config["security.protocol"] == "SASL_SSL"
    assert (config["sasl.mechanism"], config["sasl.username"], config["sasl.password"]) == ("SCRAM-SHA-512", "u", "p")
    assert config["ssl.ca.location"] == "/ca.pem"
    assert "ssl.key.location" not in config


@pytest.mark.embedded
def test_partitions_and_delivery_reports(embedded_stack: EmbeddedStack) -> None:
    settings = embedded_stack.settings
    metadata = wait_for_kafka(settings)
    partitions = Partitions(metadata, [FRAMES.name])
    assert partitions.count(FRAMES.name) == 4
    assert partitions.of(FRAMES.name, "pool") == partition_of("pool", 4)
    with pytest.raises(SourceError, match="no topic absent"):
        Partitions(metadata, ["absent"])
    with pytest.raises(SourceError, match="topics --create"):
        wait_for_kafka(settings, topics=["absent"], deadline_s=0.2)

    embedded_stack.create_topic("clients-1")
    reports = Deliveries()
    producer = make_producer(settings, message_max_bytes=2000)
    producer.produce("clients-1", b"x", partition=0, on_delivery=reports)
    producer.produce("clients-1", b"x", partition=99, on_delivery=reports)
    assert producer.flush(10) == 0
    assert (reports.delivered, reports.failed) == (1, 1)
    assert "clients-1" in reports.last_error


@pytest.mark.embedded
def test_a_broker_error_is_tried_again(embedded_stack: EmbeddedStack) -> None:
    embedded_stack.create_topic("clients-2")
    reports = Deliveries()
    embedded_stack.push_errors(0, [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT])
    producer = make_producer(embedded_stack.settings)
    producer.produce("clients-2", b"x", partition=0, on_delivery=reports)
    assert producer.flush(20) == 0
    assert (reports.delivered, reports.failed) == (1, 0)
