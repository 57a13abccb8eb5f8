"""A site for each kind of broker: the mock cluster and a real Kafka."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from framer_site import PARTITIONS, Site
from local_kafka import Broker

from streams.embedded import EmbeddedStack
from streams.settings import Settings


@pytest.fixture(params=[pytest.param("mock", marks=pytest.mark.embedded), pytest.param("kafka", marks=pytest.mark.kafka)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    group = f"framer-{uuid.uuid4().hex[:8]}"
    if request.param == "mock":
        stack: EmbeddedStack = request.getfixturevalue("embedded_stack")
        settings = stack.settings.model_copy(update={"framer_group": group})
        site = Site(settings, stack.broker_down, stack.broker_up)
        for topic in (*site.sources, site.frames, site.dead):
            stack.create_topic(topic, PARTITIONS)
        yield site
        stack.broker_up()  # whatever the test did
        return
    bootstrap: str = request.getfixturevalue("kafka_bootstrap")

    def broker() -> Broker:
        broker: Broker = request.getfixturevalue("kafka_broker")
        return broker

    settings = Settings(kafka_bootstrap=bootstrap, framer_group=group, kafka_session_timeout_s=6)
    site = Site(settings, lambda: broker().kill(), lambda: broker().start())
    admin = AdminClient(site.client())
    topics = [NewTopic(topic, PARTITIONS, 1) for topic in (*site.sources, site.frames, site.dead)]
    for future in admin.create_topics(topics).values():
        future.result(20)
    yield site
