"""Redis users and what each may do: the least that its role needs, on the keys of one fleet.

Rules follow https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/. A function runs with the rights of its
caller, so the judge has each command of schemas/redis/slodrift.lua on its own keys and no script of anybody's choice. Passwords
are in the file as SHA-256 alone; they should be long and drawn, because such a digest is quick to guess against.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, get_args

__all__ = ["ROLES", "Role", "acl_file", "rules", "user_name"]

Role = Literal["judge", "host", "setup"]
ROLES: tuple[Role, ...] = get_args(Role)

_EVERYBODY = ("ping", "hello", "client|setname", "client|setinfo")
_COMMANDS: dict[Role, tuple[str, ...]] = {
    # FCALL asserts a state; the rest is what the function does with the caller's rights.
    "judge": ("fcall", "fcall_ro", "get", "set", "del", "hset", "pexpire", "xadd", "xrevrange", "publish"),
    "host": ("get", "mget", "subscribe", "unsubscribe"),
    # A function does what its caller may: whoever loads one gets no right from it.
    "setup": ("function|load", "fcall_ro"),
}


def user_name(role: Role) -> str:
    """Name of the role's user."""
    return f"slodrift-{role}"


def rules(role: Role, fleet: str) -> str:
    """Rights of one role: selectors of keys and channels, then commands.

    Args:
        role: Whose.
        fleet: Letters, digits, `.`, `_` and `-` only, as the settings demand: nothing that a glob pattern reads otherwise.
    """
    tag = f"{{slodrift:{fleet}:*}}"
    where: dict[Role, tuple[str, ...]] = {
        "judge": (f"~{tag}:head", f"~{tag}:snap", f"~{tag}:log", f"~{tag}:d:*", f"&{tag}:ch"),
        "host": (f"%R~{tag}:head", f"%R~{tag}:snap", f"&{tag}:ch"),
        "setup": (),
    }
    commands = (f"+{command}" for command in (*_EVERYBODY, *_COMMANDS[role]))
    return " ".join(("resetkeys", "resetchannels", *where[role], "-@all", *commands))


def acl_file(fleet: str, passwords: Mapping[Role, str]) -> str:
    """Content of a Redis ACL file (`aclfile` in redis.conf); a role without a password is off, and so is the default user."""
    lines = ["user default off resetpass resetkeys resetchannels -@all"]
    for role in ROLES:
        password = passwords.get(role)
        login = "off resetpass" if password is None else f"on resetpass #{hashlib.sha256(password.encode()).hexdigest()}"
        lines.append(f"user {user_name(role)} {login} {rules(role, fleet)}")
    return "\n".join(lines) + "\n"
