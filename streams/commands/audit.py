"""`slodrift audit follow|verify`: a tamper-evident record of every decision, and the proof that it is whole."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import structlog
import typer

from schemas.errors import ConfigError, SourceError
from schemas.signing import load_keyring, load_signer
from sinks.audit_file import AuditFile
from sinks.audit_verify import verify_lines
from streams.audit import compare_with_log, follow_once
from streams.logs import configure_logs
from streams.settings import load_settings

__all__ = ["app"]

log = structlog.get_logger(__name__)
app = typer.Typer(help="A tamper-evident record of every decision.", no_args_is_help=True)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The audit file, NDJSON.")]
_Keys = Annotated[list[Path], typer.Option("--public-key", metavar="PEM", help="Of anchors; may be given again.")]
_Fleet = Annotated[str | None, typer.Option(help="Name of the fleet [SLODRIFT_FLEET].")]
_Bootstrap = Annotated[str | None, typer.Option(help="Kafka addresses [SLODRIFT_KAFKA_BOOTSTRAP].")]
_LOOK_S = 1.0


@app.command()
def follow(
    file: _File,
    key: Annotated[Path, typer.Option(metavar="PEM", help="Private Ed25519 key; not the judge's.")],
    public_key: _Keys,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between anchors.")] = 60.0,
    copies: Annotated[Path | None, typer.Option(metavar="FILE2", help="Append anchors here, too: another disk or owner.")] = None,
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
                _tell(audit.anchor(time.time_ns() // 1_000_000), copies)
                anchor_at = time.monotonic() + every
            stop.wait(_LOOK_S)
        _tell(audit.anchor(time.time_ns() // 1_000_000), copies)


def _tell(anchors: list[bytes], copies: Path | None) -> None:
    text = b"".join(line + b"\n" for line in anchors)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    if copies is not None and text:
        try:
            with copies.open("ab") as file:
                file.write(text)
        except OSError as exc:
            log.error("the copies of anchors cannot be written", file=str(copies), cause=exc.strerror)


@app.command()
def verify(
    file: _File,
    public_key: _Keys,
    anchors: Annotated[list[Path] | None, typer.Option(metavar="FILE2", help="Copies of anchors kept elsewhere.")] = None,
    with_log: Annotated[bool, typer.Option("--with-log", help="Compare with the decision log in Kafka, too.")] = False,
    fleet: _Fleet = None,
    bootstrap: _Bootstrap = None,
) -> None:
    """Prove that FILE holds every decision that was anchored, unchanged and in order; exit code 1 and what was done if not."""
    settings = load_settings(fleet=fleet, kafka_bootstrap=bootstrap)
    copies = [line for path in anchors or [] for line in _lines(path)]
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
