"""What covers a request besides its node: its session bucket, its request classes and its pool, by name.

    subjects = ["gpu-017", *covering(session="s-9", adapter="lora-3", tenant="t-4", prompt_tokens=812)]

The names are those of the decisions; CRC-32 and fixed prompt classes, so that every host and the judge agree without asking.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from slodrift_client.contract import Scope

__all__ = ["POOL_SUBJECT", "PROMPT_CLASSES", "SESSION_BUCKETS", "covering", "kind_of", "scope_of"]

SESSION_BUCKETS = 1024
PROMPT_CLASSES = (0, 256, 512, 1024, 2048, 4096, 8192, 16384)
POOL_SUBJECT = "pool:"
_LONGEST = 200
_SAFE = "/:@+=._-~"


def covering(
    *, session: str | None = None, adapter: str | None = None, tenant: str | None = None, prompt_tokens: int | None = None,
    pool: bool = True,
) -> list[str]:  # fmt: skip
    """Subjects of one request, without its node; what is not known covers nothing.

    >>> covering(session="s-9", adapter="lora-3", prompt_tokens=812)
    ['session:508', 'request:adapter:lora-3', 'request:prompt:512', 'pool:']
    """
    subjects = []
    if session:
        subjects.append(f"session:{(zlib.crc32(session.encode()) or 1) % SESSION_BUCKETS}")
    if adapter:
        subjects.append(_named("adapter", adapter))
    if tenant:
        subjects.append(_named("tenant", tenant))
    if prompt_tokens is not None:
        subjects.append(f"request:prompt:{max(low for low in PROMPT_CLASSES if low <= max(prompt_tokens, 0))}")
    if pool:
        subjects.append(POOL_SUBJECT)
    return subjects


def scope_of(subject: str) -> Scope:
    """Scope of a subject, by its prefix."""
    head, colon, _ = subject.partition(":")
    if not colon or head not in ("session", "request", "pool"):
        return "node"
    return "session" if head == "session" else "request" if head == "request" else "pool"


def kind_of(subject: str) -> str:
    """What a subject is one of: `session`, `request:adapter`, `pool`...; "" for a node."""
    head, colon, rest = subject.partition(":")
    if not colon or head not in ("session", "request", "pool"):
        return ""
    return f"request:{rest.partition(':')[0]}" if head == "request" else head


def _named(kind: str, name: str) -> str:
    word = quote(name, safe=_SAFE, errors="replace")
    if len(word) > _LONGEST:
        word = f"{word[:_LONGEST]}~{zlib.crc32(name.encode()):08x}"
    return f"request:{kind}:{word}"
