"""`slodrift worker judge|archive|all`: judges frames, archives results, or both in one process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from typing import Annotated

import typer
import uvloop

from schemas.errors import ConfigError
from schemas.policy_file import load_policy
from streams.clock_step import end_when_set_back
from streams.logs import LogFormat, configure_logs
from streams.settings import Settings, load_settings
from streams.worker.malloc import keep_little
from streams.worker.policy_factory import PolicyFactory
from streams.worker.process import ROLES, WorkerProcess

__all__ = ["run"]

_LAST_RESORT_S = 9.5  # a thread that hangs in a driver must not keep the process alive


def run(
    role: Annotated[str, typer.Argument(metavar="judge|archive|all", help="What this process does; all for the embedded stack.")],
    policy: Annotated[
        str | None, typer.Option(help="Policy file [default: SLODRIFT_POLICY_FILE, else the built-in one].")
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka addresses [default: SLODRIFT_KAFKA_BOOTSTRAP].")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on this port of the loopback.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    log_format: Annotated[LogFormat, typer.Option(help="auto, console or json.")] = "auto",
) -> None:
    """Judge frames and decide, or store results in ClickHouse; as many processes as there are partitions may share the work.

    Prints one line of JSON when it has taken over its partitions, and ends within 10 s of SIGTERM.
    """
    if role not in (*ROLES, "all"):
        raise ConfigError(f"worker {role}: there is no such role, say judge, archive or all")
    keep_little()
    configure_logs(log_level, log_format)
    _hush(log_level)
    settings = load_settings(kafka_bootstrap=bootstrap)
    chosen = load_policy(policy or settings.policy_file)
    if metrics_port is not None:
        from prometheus_client import start_http_server  # most runs need none

        start_http_server(metrics_port, addr="127.0.0.1")
    end_when_set_back()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ROLES if role == "all" else (role,), PolicyFactory(chosen)))


def _hush(log_level: str) -> None:
    """Libraries tell every step and every failed connection; the worker says in one sentence what matters."""
    if log_level.upper() != "DEBUG":
        for name in ("faust", "mode", "asyncio", *(f"streams.worker.{module}" for module in ("app", "monitor", "transport"))):
            logging.getLogger(name).setLevel("WARNING")  # ours are those whose classes are Faust services
        logging.getLogger("aiokafka").setLevel("CRITICAL")


async def _serve(settings: Settings, roles: tuple[str, ...], factory: PolicyFactory) -> None:
    worker = WorkerProcess(settings, roles, factory)
    loop = asyncio.get_running_loop()

    def end() -> None:
        worker.stop()
        last_resort = threading.Timer(_LAST_RESORT_S, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await worker.run(lambda partitions: _say_ready(roles, partitions))


def _say_ready(roles: tuple[str, ...], partitions: list[int]) -> None:
    print(json.dumps({"kind": "ready", "roles": list(roles), "partitions": partitions}), flush=True)
