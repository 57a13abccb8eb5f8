"""`slodrift audit follow|verify`: a tamper-evident record of every decision, and the proof that it is whole."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import structlog
import typer

from schemas.errors import ConfigError, SinkError, SourceError
from schemas.signing import load_keyring, load_signer
from sinks.audit_copies import read_anchors as read_clickhouse_anchors
from sinks.audit_copies import store_anchors
from sinks.audit_file import AuditFile
from sinks.audit_verify import verify_lines
from streams.audit import compare_with_log, follow_once, send_anchors
from streams.audit import read_anchors as read_kafka_anchors
from streams.logs import configure_logs
from streams.settings import Settings, load_settings

__all__ = ["app"]

log = structlog.get_logger(__name__)
app = typer.Typer(help="A tamper-evident record of every decision.", no_args_is_help=True)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The audit file, NDJSON.")]
_Keys = Annotated[list[Path], typer.Option("--public-key", metavar="PEM", help="Of anchors; may be given again.")]
_Fleet = Annotated[str | None, typer.Option(help="Name of the fleet [SLODRIFT_FLEET].")]
_Bootstrap = Annotated[str | None, typer.Option(help="Kafka addresses [SLODRIFT_KAFKA_BOOTSTRAP].")]
_LOOK_S = 1.0
_MAX_WAITING = 100_000


@app.command()
def follow(
    file: _File,
    key: Annotated[Path, typer.Option(metavar="PEM", help="Private Ed25519 key; not the judge's.")],
    public_key: _Keys,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between anchors.")] = 60.0,
    copies: Annotated[Path | None, typer.Option(metavar="FILE2", help="Append anchors here, too: another disk or owner.")] = None,
    to_kafka: Annotated[bool, typer.Option("--to-kafka", help="Copy anchors to the topic slodrift.anchors.")] = False,
    to_clickhouse: Annotated[bool, typer.Option("--to-clickhouse", help="Copy anchors to the table anchors.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Stop at the present end of the log.")] = False,
    fleet: _Fleet = None,
    bootstrap: _Bootstrap = None,
) -> None:
    """Append the decisions of the log to FILE, each with its place in a hash chain, and sign anchors; goes on after a restart.

    Anchors are printed as well, so that a log shipper may keep them elsewhere: only a copy tells that the end of FILE was cut.
    """
    configure_logs("INFO", "auto")
    settings = load_settings(fleet=fleet, kafka_bootstrap=bootstrap)
    stop = threading.Event()
    copier = _Copier(settings, copies, kafka=to_kafka, clickhouse=to_clickhouse)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with AuditFile(file, settings.fleet, load_signer(key), load_keyring(public_key)) as audit:
        if audit.torn:
            log.warning("an unfinished line at the end of the file was cut off", bytes=audit.torn)
        anchor_at, failed = time.monotonic() + every, ""
        while not stop.is_set():
            try:
                follow_once(settings, audit, stop.is_set)
                failed = ""
            except SourceError as exc:
                if once:
                    raise
                if str(exc) != failed:
                    log.warning("the log cannot be read, trying again", cause=str(exc))
                failed = str(exc)
            if once:
                break
            if time.monotonic() >= anchor_at:
                copier.tell(audit.anchor(time.time_ns() // 1_000_000))
                anchor_at = time.monotonic() + every
            stop.wait(_LOOK_S)
        copier.tell(audit.anchor(time.time_ns() // 1_000_000))
        copier.close()


class _Copier:
    """Carries anchors away from the file. A place that is away gets them later; the file does not wait for it."""

    def __init__(self, settings: Settings, file: Path | None, *, kafka: bool, clickhouse: bool) -> None:
        self._places: dict[str, Callable[[list[bytes]], None]] = {}
        if file is not None:
            self._places[str(file)] = lambda lines: _append(file, lines)
        if kafka:
            self._places["Kafka"] = lambda lines: send_anchors(settings, lines)
        if clickhouse:
            self._places["ClickHouse"] = lambda lines: store_anchors(settings.clickhouse_dsn.get_secret_value(), lines)
        self._waiting: dict[str, list[bytes]] = {place: [] for place in self._places}

    def tell(self, anchors: list[bytes]) -> None:
        """Print anchors and copy them, with those that could not be copied before."""
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in anchors))
        sys.stdout.buffer.flush()
        for place, put in self._places.items():
            lines = self._waiting[place] = [*self._waiting[place], *anchors][-_MAX_WAITING:]
            if not lines:
                continue
            try:
                put(lines)
            except SinkError as exc:
                log.error("the copies of anchors cannot be written, trying again with the next", place=place, cause=str(exc))
            else:
                self._waiting[place] = []

    def close(self) -> None:
        """Say so if some were not copied.

        Raises:
            SinkError: Some were not.
        """
        if left := {place: len(lines) for place, lines in self._waiting.items() if lines}:
            raise SinkError("anchors were not copied: " + ", ".join(f"{n} to {place}" for place, n in left.items()))


def _append(path: Path, lines: list[bytes]) -> None:
    try:
        with path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
    except OSError as exc:
        raise SinkError(f"{path}: {exc.strerror}") from None


@app.command()
def verify(
    file: _File,
    public_key: _Keys,
    anchors: Annotated[list[Path] | None, typer.Option(metavar="FILE2", help="Copies of anchors kept elsewhere.")] = None,
    from_kafka: Annotated[bool, typer.Option("--from-kafka", help="Take copies of anchors from slodrift.anchors, too.")] = False,
    from_clickhouse: Annotated[bool, typer.Option("--from-clickhouse", help="... and from the table anchors.")] = False,
    with_log: Annotated[bool, typer.Option("--with-log", help="Compare with the decision log in Kafka, too.")] = False,
    fleet: _Fleet = None,
    bootstrap: _Bootstrap = None,
) -> None:
    """Prove that FILE holds every decision that was anchored, unchanged and in order; exit code 1 and what was done if not."""
    settings = load_settings(fleet=fleet, kafka_bootstrap=bootstrap)
    copies = [line for path in anchors or [] for line in _lines(path)]
    if from_kafka:
        copies += read_kafka_anchors(settings)
    if from_clickhouse:
        copies += read_clickhouse_anchors(settings.clickhouse_dsn.get_secret_value(), settings.fleet)
    result = verify_lines(_lines(file), settings.fleet, load_keyring(public_key), copies)
    faults, ahead = list(result.faults), 0
    if with_log:
        more, ahead = compare_with_log(settings, result.entries)
        faults += more
    for fault in faults:
        typer.echo(f"{fault.kind}: {fault.pool or file} {fault.n}: {fault.detail}")
    for pool, state in result.pools.items():
        loose = state.entries - state.anchored
        rest = f", {loose} after the last anchor" if loose > 0 else ""
        typer.echo(f"{pool}: {state.entries} decisions, {state.anchored} anchored{rest}")
    if ahead:
        typer.echo(f"{ahead} decisions of the log are not in the file yet")
    typer.echo("tampered with" if faults else "whole")
    if faults:
        raise typer.Exit(1)


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            return file.readlines()
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
