"""Redis of the protocol model: a real server with the real function library, reached through facades that can fail.

Keys expire by the server's clock, the model has its own; so expiry is a deletion that the model makes.
"""

from __future__ import annotations

from typing import Any

import redis as driver
from redis.exceptions import ConnectionError as Away

from schemas.redis_keys import PoolKeys
from sinks.redis_library import library_source

__all__ = ["FixedLink", "HostLink", "JudgeLink", "Server"]


class Server:
    """One pool's keys on a server.

    Args:
        client: Of the real server; kept for the whole session.
        keys: Of the pool.

    Attributes:
        up: Whether anybody reaches it.
        seen: Every (head, snapshot) that ever stood there, true or forged, for replays.
    """

    def __init__(self, client: driver.Redis, keys: PoolKeys) -> None:
        self.client, self.keys = client, keys
        self.up = True
        self.seen: list[tuple[bytes | None, bytes | None]] = []
        self._saved: dict[str, bytes] = {}
        self._now: tuple[bytes | None, bytes | None] | None = None
        client.flushall()

    def pair(self) -> tuple[bytes | None, bytes | None]:
        """What stands there now. Everything that writes does it through here, so it need not be read again until then."""
        if self._now is None:
            head, snapshot = self.client.mget(self.keys.head, self.keys.snap)  # type: ignore[misc]
            self._now = head, snapshot
            if self._now not in self.seen[-20:]:
                self.seen.append(self._now)
        return self._now

    def changed(self) -> None:
        """Somebody wrote."""
        self._now = None

    def put(self, head: bytes | None, snapshot: bytes | None) -> None:
        """Somebody who may write to Redis writes."""
        self.changed()
        for key, value in ((self.keys.head, head), (self.keys.snap, snapshot)):
            if value is None:
                self.client.delete(key)
            else:
                self.client.set(key, value)

    def save(self) -> None:
        """A backup."""
        names = (self.keys.head, self.keys.snap, self.keys.log)
        self._saved = {name: raw for name in names if (raw := self.client.dump(name)) is not None}  # type: ignore[misc]

    def roll_back(self) -> None:
        """The backup comes back."""
        self.changed()
        for name in (self.keys.head, self.keys.snap, self.keys.log):
            self.client.delete(name)
        for name, raw in self._saved.items():
            self.client.restore(name, 0, raw)

    def lose_all(self, *, functions: bool) -> None:
        """FLUSHALL, or a restart without persistence."""
        self.changed()
        self.client.flushall()
        if functions:
            self.client.function_flush("SYNC")

    def load_library(self) -> None:
        """As `slodrift migrate` does."""
        self.client.function_load(library_source(), replace=True)


class JudgeLink:
    """The sink's client. `fate`: of the next call, "lost" (not made) or "unanswered" (made)."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.fate = ""

    async def execute_command(self, *arguments: Any) -> Any:
        fate, self.fate = self.fate, ""
        if not self.server.up or fate == "lost":
            raise Away("away")
        reply = self.server.client.execute_command(*arguments)
        self.server.changed()
        self.server.pair()
        if fate == "unanswered":
            raise Away("no answer")
        return reply

    async def function_load(self, code: str, replace: bool = False) -> Any:
        return self.server.client.function_load(code, replace=replace)

    async def fcall_ro(self, name: str, n: int) -> Any:
        if not self.server.up:
            raise Away("away")
        return self.server.client.fcall_ro(name, n)


class HostLink:
    """A host's client. `up`: the network. `old`: what it is shown instead of what stands there, once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.up = True
        self.old: tuple[bytes | None, bytes | None] | None = None
        self.torn: tuple[bytes | None, bytes | None] | None = None

    def pubsub(self, **_: Any) -> HostLink:
        return self

    def subscribe(self, *channels: str) -> None:
        self._reach()

    def get_message(self, timeout: float = 0.0) -> None:
        return None

    def close(self) -> None:
        """Nothing to close."""

    def pipeline(self, transaction: bool = True) -> HostLink:
        return self

    def __enter__(self) -> HostLink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing to leave."""

    def get(self, key: str) -> None:
        assert key == self.server.keys.head

    def execute(self, raise_on_error: bool = True) -> list[bytes | None]:
        self._reach()
        return [self._pair()[0]]

    def mget(self, *keys: str) -> list[bytes | None]:
        self._reach()
        return list(self._pair() if self.torn is None else self.torn)

    def _pair(self) -> tuple[bytes | None, bytes | None]:
        return self.server.pair() if self.old is None else self.old

    def _reach(self) -> None:
        if not (self.up and self.server.up):
            raise Away("away")


class FixedLink(HostLink):
    """Shows what it is told to show, whatever stands there and whoever is up."""

    def __init__(self, server: Server, pair: tuple[bytes | None, bytes | None]) -> None:
        super().__init__(server)
        self.old = pair

    def mget(self, *keys: str) -> list[bytes | None]:
        return list(self._pair())

    def _reach(self) -> None:
        """It is always there."""
