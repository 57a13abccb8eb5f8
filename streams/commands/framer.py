"""`slodrift framer`: JSON telemetry events to frames, until it is stopped."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Annotated

import typer
from prometheus_client import start_http_server

from schemas.errors import ConfigError
from schemas.policy_file import load_policy
from streams.clock_step import end_when_set_back
from streams.framer import Framer
from streams.logs import LogFormat, configure_logs
from streams.settings import load_settings

__all__ = ["run"]


def run(
    bootstrap: Annotated[str | None, typer.Option(help="Kafka addresses (default: SLODRIFT_KAFKA_BOOTSTRAP).")] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group (default: SLODRIFT_FRAMER_GROUP).")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy file, which says what pools are split into cells [default: SLODRIFT_POLICY_FILE]."),
    ] = None,
    batch_s: Annotated[
        float,
        typer.Option("--batch-s", min=0.001, max=5.0, help="Gather events for so long before frames are made, seconds."),
    ] = 0.05,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for Prometheus; 0 for none.")] = 0,
    metrics_host: Annotated[str, typer.Option(help="Address the port listens on.")] = "127.0.0.1",
    log_format: Annotated[LogFormat, typer.Option(help="auto is console on a terminal, else json.")] = "auto",
) -> None:
    """Turn JSON events (telemetry.requests, nodes, gpu, context) into frames for the judges.

    Start as many as needed: they share the partitions. SIGTERM finishes and commits what was read. While Kafka is away it
    waits, and says so once.
    """
    configure_logs(fmt=log_format)
    settings = load_settings(kafka_bootstrap=bootstrap, framer_group=group)
    chosen = load_policy(policy or settings.policy_file)
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    if metrics_port:
        try:
            start_http_server(metrics_port, metrics_host)
        except OSError as exc:
            raise ConfigError(f"--metrics-port: cannot listen on {metrics_host}:{metrics_port}: {exc.strerror}") from None
    end_when_set_back()
    gc.freeze()  # what is loaded by now stays; the collector need not walk it again and again
    Framer(settings, batch_s=batch_s, policy=chosen).run(stop)
