"""The Faust app of a worker: at-least-once, no web server, no tables, no topic creation, no pickle."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Any

import faust

from streams.settings import Settings
from streams.worker.ledger import CommitLedger
from streams.worker.monitor import LightMonitor
from streams.worker.schema import PassThroughSchema
from streams.worker.transport import BatchTransport, check_faust

__all__ = ["WorkerApp", "make_app"]

_STREAM_BUFFER = 65_536  # batches; what really bounds the buffer is the transport's byte budget
_MAX_POLL_S = 7 * 86_400.0  # an archive may wait for ClickHouse for days; the watchdog ends what is stuck
_MAX_FETCH_BYTES = 2 * 1024 * 1024


class WorkerApp(faust.App):  # type: ignore[misc]
    """A Faust app with our transport and a commit ledger."""

    ledger: CommitLedger

    async def on_first_start(self) -> None:
        """Stock Faust makes a data folder here; without tables there is nothing to put in it."""

    def batches(self, *names: str) -> Any:
        """Topics whose events are `FetchBatch`es. Without Faust's acks: offsets come from the ledger."""
        return self.topic(*names, schema=PassThroughSchema(), acks=False)


def make_app(settings: Settings, group: str, *, commit_interval_s: float = 1.0) -> WorkerApp:
    """An app of the consumer group `group`, not started.

    Args:
        settings: Where the broker is, and its timeouts.
        group: Consumer group.
        commit_interval_s: Durable offsets are committed this often, seconds.

    Raises:
        ConfigError: Wrong Faust version.
    """
    check_faust()
    session_s = settings.kafka_session_timeout_s
    app = WorkerApp(
        group,
        broker=[f"kafka://{address.strip()}" for address in settings.kafka_bootstrap.split(",")],
        broker_credentials=_credentials(settings),
        version=1,
        store="memory://",
        datadir=Path(tempfile.gettempdir()) / f"slodrift-{group}",
        key_serializer="raw",
        value_serializer="raw",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        processing_guarantee="at_least_once",
        stream_buffer_maxsize=_STREAM_BUFFER,
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        broker_max_poll_interval=_MAX_POLL_S,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 6,
        broker_request_timeout=max(2 * session_s, 10.0),
        broker_rebalance_timeout=max(2 * session_s, 10.0),
        broker_commit_interval=commit_interval_s,
        broker_check_crcs=settings.kafka_check_crcs,
        consumer_max_fetch_size=_MAX_FETCH_BYTES,
        consumer_auto_offset_reset="earliest",
        cython_optimizations=True,
        Monitor=LightMonitor,
    )
    app.ledger = CommitLedger()
    app.transport = BatchTransport(
        app.conf.broker_consumer, app, ledger=app.ledger, fetch_max_wait_ms=max(1, round(settings.kafka_fetch_wait_s * 1000))
    )
    return app


def _credentials(settings: Settings) -> Any:
    protocol = settings.kafka_security_protocol
    if protocol == "PLAINTEXT":
        return None
    context = None
    if protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=settings.kafka_tls_ca_file)
        if settings.kafka_tls_cert_file is not None:
            password = settings.kafka_tls_key_password
            context.load_cert_chain(
                settings.kafka_tls_cert_file, settings.kafka_tls_key_file, password.get_secret_value() if password else None
            )
    if protocol == "SSL":
        return faust.SSLCredentials(context=context)
    secret = settings.kafka_sasl_password
    return faust.SASLCredentials(
        username=settings.kafka_sasl_username,
        password=secret.get_secret_value() if secret else None,
        mechanism=settings.kafka_sasl_mechanism,
        ssl_context=context,
    )
