"""A Kafka cluster in memory: librdkafka's mock cluster, which the `confluent-kafka` wheel carries, driven by ctypes.

It speaks the real protocol to any client, with consumer groups and commits. Its limits: 5 MB kept per partition, no
CreateTopics request, a long poll is not woken by new data, and after a member leaves a group cleanly the next join waits for
the session timeout. API: src/rdkafka_mock.h of librdkafka.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path

from schemas.errors import ConfigError

__all__ = ["MockCluster", "find_librdkafka"]

_PRODUCER = 0  # rd_kafka_type_t
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [c_void_p, c_int32]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, ctypes.POINTER(c_int)]),
    "rd_kafka_mock_clear_request_errors": (None, [c_void_p, c_int16]),
}


def find_librdkafka() -> Iterator[str]:
    """Places where the library may be, best first: wheels for Linux and macOS, the extension module, the system."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs", package):
            yield from map(str, sorted(folder.glob("librdkafka*.so*")) + sorted(folder.glob("librdkafka*.dylib")))
        yield from map(str, sorted(package.glob("cimpl*.so")))  # its symbols include those of the library it is linked to
    if system := ctypes.util.find_library("rdkafka"):
        yield system


def _load() -> ctypes.CDLL:
    tried = []
    for path in find_librdkafka():
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as exc:
            tried.append(f"{path} ({exc})")
        else:
            return library
    raise ConfigError(
        f"no librdkafka with a mock cluster was found (tried {'; '.join(tried) or 'nothing'}): "
        "install the wheel of confluent-kafka, or use a real broker"
    )


class MockCluster:
    """A mock cluster inside this process; brokers are numbered from 1."""

    def __init__(self, brokers: int = 1, rebalance_delay_ms: int = 50) -> None:
        self._lib = _load()
        error = ctypes.create_string_buffer(512)
        conf = self._lib.rd_kafka_conf_new()
        self._lib.rd_kafka_conf_set(conf, b"log_level", b"0", error, len(error))  # it only carries the cluster
        self._client = self._lib.rd_kafka_new(_PRODUCER, conf, error, len(error))
        if not self._client:
            raise ConfigError(f"librdkafka does not start: {error.value.decode()}")
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._client, brokers)
        if not self._cluster:
            raise ConfigError("the mock cluster does not start: is the loopback interface up?")
        self._lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, rebalance_delay_ms)

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, comma-separated."""
        raw: bytes = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return raw.decode()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; one that exists is an error."""
        self._check(self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1))

    def broker_down(self, broker: int) -> None:
        """Close the connections of `broker` and refuse new ones."""
        self._check(self._lib.rd_kafka_mock_broker_set_down(self._cluster, broker))

    def broker_up(self, broker: int) -> None:
        """Accept connections again; topics and offsets were kept."""
        self._check(self._lib.rd_kafka_mock_broker_set_up(self._cluster, broker))

    def set_rtt(self, broker: int, rtt_ms: int) -> None:
        """Delay every answer of `broker` by `rtt_ms`."""
        self._check(self._lib.rd_kafka_mock_broker_set_rtt(self._cluster, broker, rtt_ms))

    def push_errors(self, api_key: int, errors: list[int]) -> None:
        """Answer the next requests of kind `api_key` (0 Produce, 1 Fetch, 8 OffsetCommit ...) with these error codes."""
        array = (c_int * len(errors))(*errors)
        self._lib.rd_kafka_mock_push_request_errors_array(self._cluster, api_key, len(errors), array)

    def clear_errors(self, api_key: int) -> None:
        """Forget the errors that were pushed and not yet given."""
        self._lib.rd_kafka_mock_clear_request_errors(self._cluster, api_key)

    def close(self) -> None:
        """Stop the brokers; everything they kept is gone."""
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._client)

    def _check(self, error: int) -> None:
        if error:
            raise ValueError(self._lib.rd_kafka_err2str(error).decode())
