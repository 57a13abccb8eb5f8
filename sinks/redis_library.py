"""The Redis function library: loading it is an administrator's step, using it needs only FCALL."""

from __future__ import annotations

from importlib import resources

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from schemas.contract import LIBRARY_VERSION
from schemas.errors import ConfigError, SinkBackpressure

__all__ = ["check_library", "ensure_library", "library_source", "load_library"]


def library_source() -> str:
    """Text of schemas/redis/slodrift.lua."""
    return (resources.files("schemas") / "redis" / "slodrift.lua").read_text(encoding="utf-8")


async def load_library(redis: Redis) -> None:
    """Load the library, replacing an older one. A cluster needs it on every primary.

    Raises:
        SinkBackpressure: Redis is away.
        ConfigError: The server refuses: too old, or the user may not load functions.
    """
    try:
        await redis.function_load(library_source(), replace=True)
    except ResponseError as exc:
        raise ConfigError(
            f"Redis refuses the function library: {exc}. It needs Redis 7 or Valkey, and a user with +function"
        ) from None
    except (RedisError, OSError) as exc:
        raise SinkBackpressure(f"Redis is away: {exc}") from None


async def check_library(redis: Redis) -> None:
    """Make sure the library on the server is the one this code speaks to.

    Raises:
        SinkBackpressure: Redis is away.
        ConfigError: It is missing or of another version.
    """
    try:
        found = await redis.fcall_ro("slodrift_version", 0)
    except NoPermissionError as exc:
        raise ConfigError(f"this Redis user may not call functions: {exc}; grant +fcall +fcall_ro") from None
    except ResponseError as exc:
        raise ConfigError(f"Redis has no slodrift function library ({exc}); load it with: slodrift migrate") from None
    except (RedisError, OSError) as exc:
        raise SinkBackpressure(f"Redis is away: {exc}") from None
    if int(found) != LIBRARY_VERSION:
        raise ConfigError(
            f"the function library in Redis has version {int(found)}, this slodrift needs {LIBRARY_VERSION}: run slodrift migrate"
        )


async def ensure_library(redis: Redis) -> None:
    """Check the library and load it where it is missing or old and this user may; a Redis without persistence loses it.

    Raises:
        SinkBackpressure: Redis is away.
        ConfigError: It is missing or of another version, and this user may not load it.
    """
    try:
        await check_library(redis)
    except ConfigError as missing:
        try:
            await load_library(redis)
        except ConfigError:
            raise missing from None
