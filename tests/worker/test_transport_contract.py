"""The private members of faust 0.15 and aiokafka that the transport overrides or reads exist and look as expected."""

from __future__ import annotations

import inspect
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.serializers.schemas import Schema
from faust.transport.drivers import aiokafka as driver

from schemas.errors import ConfigError
from streams.worker import transport
from streams.worker.app import WorkerApp
from streams.worker.monitor import LightMonitor
from streams.worker.schema import PassThroughSchema


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def overridden(ours: type) -> list[str]:
    stock = ours.__mro__[1]
    return [name for name, value in vars(ours).items() if inspect.isfunction(value) and hasattr(stock, name)]


OURS = [transport.BatchConsumer, transport._ConsumerThread, PassThroughSchema, LightMonitor, WorkerApp]


@pytest.mark.parametrize(
    ("ours", "name"), [(c, n) for c in OURS for n in overridden(c) if n != "__init__"], ids=lambda v: getattr(v, "__name__", v)
)
def test_overrides_have_the_signature_of_the_stock_method(ours: type, name: str) -> None:
    stock = getattr(ours.__mro__[1], name)
    assert parameters(getattr(ours, name)) == parameters(stock)
    assert inspect.iscoroutinefunction(getattr(ours, name)) == inspect.iscoroutinefunction(stock)


def test_what_must_be_overridden_is_overridden() -> None:
    assert set(overridden(transport.BatchConsumer)) >= {
        "_new_consumer_thread", "_getmany", "_to_message", "_drain_messages", "_commit_offsets", "on_partitions_revoked",
        "_filter_tps_with_pending_acks", "_filter_committable_offsets", "verify_all_partitions_active",
    }  # fmt: skip
    assert overridden(transport._ConsumerThread) == ["_create_worker_consumer"]
    assert overridden(PassThroughSchema) == ["__init__", "compile"]
    assert driver.Transport.Consumer is driver.Consumer


@pytest.mark.parametrize(
    "name",
    ["_wait_next_records", "perform_seek", "seek_wait", "assignment", "commit", "wait_first", "consumer_stopped_errors"],
)
def test_stock_consumer_offers_what_we_call(name: str) -> None:
    assert hasattr(driver.Consumer, name)


@pytest.mark.parametrize(
    "attribute", ["_thread", "_buffered_partitions", "_committed_offset", "flow_active", "suspend_flow", "callback"]
)
def test_stock_consumer_sets_what_we_read(attribute: str) -> None:
    source = "".join(inspect.getsource(c) for c in driver.Consumer.__mro__ if c.__module__.startswith("faust"))
    assert f"self.{attribute} =" in source


def test_aiokafka_still_takes_the_fetch_wait_from_the_attribute_we_set() -> None:
    source = inspect.getsource(AIOKafkaConsumer)
    assert "self._fetch_max_wait_ms = fetch_max_wait_ms" in source
    assert "fetch_max_wait_ms=self._fetch_max_wait_ms" in source
    assert parameters(AIOKafkaConsumer.highwater) == ["self", "partition"]
    assert parameters(AIOKafkaConsumer.last_poll_timestamp) == ["self", "partition"]


def test_aiokafka_still_waits_until_somebody_looks_at_an_error_of_the_group() -> None:
    source = inspect.getsource(GroupCoordinator)
    assert parameters(GroupCoordinator.check_errors) == ["self"]
    assert "self._coordinator" in inspect.getsource(AIOKafkaConsumer)
    assert "self._error_consumed_fut" in source


def test_schema_is_compiled_as_topics_expect() -> None:
    assert parameters(Schema.compile) == parameters(PassThroughSchema.compile)


def test_installed_faust_is_accepted_and_another_is_refused() -> None:
    transport.check_faust(faust.__version__)
    with pytest.raises(ConfigError, match=r"faust-streaming 0\.16\.0 is installed.*pip install"):
        transport.check_faust("0.16.0")
