"""`slodrift acl`: the Redis ACL file with one user per role and the least rights for each."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import ConfigError
from schemas.redis_acl import ROLES, Role, acl_file, user_name
from streams.settings import load_settings

__all__ = ["run"]


def run(
    fleet: Annotated[str | None, typer.Option(help="Fleet whose keys they may touch [SLODRIFT_FLEET].")] = None,
    passwords: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with one password file per user; missing ones are drawn.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the file here instead of to stdout.")] = None,
) -> None:
    """Print a Redis ACL file: users slodrift-judge, slodrift-host and slodrift-setup, and the default user off.

    Passwords are read from, or drawn into, the folder DIR (slodrift-judge, ...: mode 0600) and never printed; the file has
    their SHA-256. Without DIR every user is off. Redis reads it with: redis-server --aclfile FILE
    """
    settings = load_settings(fleet=fleet)
    text = acl_file(settings.fleet, {} if passwords is None else _passwords(passwords))
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{out}: cannot be written: {exc.strerror}") from None


def _passwords(folder: Path) -> dict[Role, str]:
    return {role: _password(folder / user_name(role)) for role in ROLES}


def _password(path: Path) -> str:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            password = path.read_text(encoding="utf-8").strip()
        else:
            password = secrets.token_urlsafe(32)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(password + "\n")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}; give a folder that this user may write") from None
    if len(password) < 16:
        raise ConfigError(
            f"{path}: the password has {len(password)} characters, at least 16 are needed: Redis keeps a plain SHA-256"
        )
    return password
