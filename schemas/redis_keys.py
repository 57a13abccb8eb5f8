"""Names of the Redis keys of one pool.

All of them carry the hash tag `{slodrift:<fleet>:<pool>}`, so on a cluster they live in one slot and one function call may
touch them together. `slodrift_client` builds the same names by itself; a test holds both sides together.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["PoolKeys"]

# Characters of a pool or subject that stay as they are. Everything else is percent-encoded, braces above all: a `}` in a name
# would end the hash tag early.
_PLAIN = "/:@+,=._-~"


@dataclass(frozen=True)
class PoolKeys:
    """Keys of `pool` in `fleet` (a fleet holds letters, digits, `.`, `_` and `-` only, so the tag is unambiguous)."""

    fleet: str
    pool: str

    @property
    def tag(self) -> str:
        """Cluster hash tag, braces included."""
        return f"{{slodrift:{self.fleet}:{quote(self.pool, safe=_PLAIN)}}}"

    @property
    def head(self) -> str:
        """Version, heartbeat, cap, and digest of the snapshot. Missing = unknown, never "all closed"."""
        return f"{self.tag}:head"

    @property
    def snap(self) -> str:
        """Complete list of subjects that are not closed."""
        return f"{self.tag}:snap"

    @property
    def log(self) -> str:
        """Stream of decisions, ids `<epoch>-<seq>`."""
        return f"{self.tag}:log"

    @property
    def doorbell(self) -> str:
        """Pub/sub channel that says "look at the head"."""
        return f"{self.tag}:ch"

    def subject(self, subject: str) -> str:
        """Hash of one subject that is not closed, for people."""
        return f"{self.tag}:d:{quote(subject, safe=_PLAIN)}"
