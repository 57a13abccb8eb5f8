"""The view of the log from outside survives a broker that dies and comes back."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from faust.types import TP
from local_kafka import Broker

from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.broker_view import BrokerView


@pytest.mark.kafka
async def test_view_sees_again_after_the_broker_was_killed_and_started(kafka_broker: Broker) -> None:
    settings, topic = Settings(kafka_bootstrap=kafka_broker.bootstrap), f"view-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(client_config(settings))
    await asyncio.to_thread(admin.create_topics([NewTopic(topic, 2, 1)])[topic].result, 20)
    view = BrokerView(settings, f"group-{topic}", [TP(topic, p) for p in range(2)])

    async def until(sees: bool) -> None:
        async with asyncio.timeout(40):
            while (view.ends is not None) is not sees:
                await view.refresh()
                await asyncio.sleep(0.1)

    try:
        await until(True)
        await asyncio.to_thread(kafka_broker.kill)
        await until(False)
        kafka_broker.start()  # the partitions have a new leader epoch; here, since a child dies with the thread that starts it
        await until(True)
        assert view.ends == {TP(topic, 0): 0, TP(topic, 1): 0}
        assert view.silent_s() < 5
    finally:
        await view.close()
