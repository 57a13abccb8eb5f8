"""`slodrift key`: the key that one node or gateway signs its telemetry with, made from the master."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import ConfigError
from schemas.telemetry_auth import derive_key, parse_masters
from streams.settings import load_settings

__all__ = ["run"]


def run(
    writer: Annotated[str, typer.Argument(help="node/NAME, which speaks for itself alone, or gateway/NAME, for any node.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it, mode 0600; must not exist yet.")],
) -> None:
    """Write the key of WRITER, 64 hexadecimal digits, to FILE; made from the first key of SLODRIFT_TELEMETRY_KEYS.

    Nothing secret is printed. Carry FILE to the writer and delete it here.
    """
    masters = load_settings().telemetry_keys
    if masters is None:
        raise ConfigError("there is no master key: set SLODRIFT_TELEMETRY_KEYS, made with: openssl rand -hex 32")
    key = derive_key(parse_masters(masters.get_secret_value())[0], writer)
    try:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(key.hex() + "\n")
    except OSError as exc:
        raise ConfigError(
            f"{out}: {exc.strerror}; give a file that does not exist, in a folder that this user may write"
        ) from None
    typer.echo(f"{out}: the key of {writer}")
