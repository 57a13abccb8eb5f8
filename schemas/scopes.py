"""Subjects of breaker decisions: how a node, a session bucket, a request class and a pool are named.

A subject without a prefix is a node. All others say their scope in front: `session:17`, `request:prompt:4096` (prompts of 4,096
tokens up to the next class), `request:adapter:lora-3`, `request:tenant:t-4`, `pool:`. Sessions are hash buckets, never single
sessions; the hash is CRC-32 of the UTF-8 text, so a host in any language finds the bucket. `slodrift_client.subjects` says the
same to hosts and shares no code with this module.
"""

from __future__ import annotations

import re
import zlib
from typing import Literal
from urllib.parse import quote

from schemas.results import Scope

__all__ = [
    "MAX_CLASSES",
    "POOL_SUBJECT",
    "PROMPT_CLASSES",
    "SESSION_BUCKETS",
    "ClassKind",
    "class_subject",
    "prompt_subject",
    "scope_of",
    "session_subject",
    "subject_fault",
]

SESSION_BUCKETS = 1024
MAX_CLASSES = 64
"""Request classes of a pool: those by prompt length, and as many by adapter as by tenant."""
PROMPT_CLASSES: tuple[int, ...] = (0, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Shortest prompt of each class by length, tokens."""
POOL_SUBJECT = "pool:"

ClassKind = Literal["adapter", "tenant"]
_LONGEST = 200
_SAFE = "/:@+=._-~"  # no comma, no space, no letter beyond ASCII: a subject must fit a header that lists subjects
_REQUEST = re.compile(r"request:(?:prompt:(?P<tokens>\d{1,5})|(?:adapter|tenant):[!-~]{1,220})")


def session_subject(session: str) -> str:
    """Subject of the bucket of a session."""
    return f"session:{(zlib.crc32(session.encode()) or 1) % SESSION_BUCKETS}"


def prompt_subject(prompt_tokens: int) -> str:
    """Subject of the class of a prompt length."""
    return f"request:prompt:{max(low for low in PROMPT_CLASSES if low <= max(prompt_tokens, 0))}"


def class_subject(kind: ClassKind, name: str) -> str:
    """Subject of the class of an adapter or a tenant; a name that is too long is cut and told apart by its hash."""
    word = quote(name, safe=_SAFE, errors="replace")
    if len(word) > _LONGEST:
        word = f"{word[:_LONGEST]}~{zlib.crc32(name.encode()):08x}"
    return f"request:{kind}:{word}"


def scope_of(subject: str) -> Scope:
    """Scope of a subject, by its prefix."""
    head, colon, _ = subject.partition(":")
    return head if colon and head in ("session", "request", "pool") else "node"  # type: ignore[return-value]


def subject_fault(subject: str) -> str:
    """Why there cannot be such a subject, or ""; any name may be a node's."""
    scope = scope_of(subject)
    if scope == "pool" and subject != POOL_SUBJECT:
        return f"the pool's own subject is {POOL_SUBJECT!r}"
    if scope == "session":
        bucket = subject.partition(":")[2]
        if not (bucket.isascii() and bucket.isdigit() and str(int(bucket)) == bucket and int(bucket) < SESSION_BUCKETS):
            return f"a session bucket is session:0 to session:{SESSION_BUCKETS - 1}"
    if scope == "request":
        found = _REQUEST.fullmatch(subject)
        if found is None:
            return "a request class is request:prompt:TOKENS, request:adapter:NAME or request:tenant:NAME"
        if found["tokens"] is not None and (
            found["tokens"] != str(int(found["tokens"])) or int(found["tokens"]) not in PROMPT_CLASSES
        ):
            return f"classes by prompt length begin at {', '.join(map(str, PROMPT_CLASSES))} tokens"
    return ""
