"""The child process of the embedded stack: holds the mock Kafka cluster and the Redis server.

It obeys one JSON object a line on stdin and answers each with one on stdout; the first line it prints says where the servers
listen. It ends when stdin closes or its parent is gone, however that died, and takes Redis and the folder with it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from streams.embedded.mock_cluster import MockCluster
from streams.embedded.redis_server import RedisServer

__all__ = ["main"]

_PARENT_CHECK_S = 0.5


def main() -> None:
    """Serve until the parent goes away. `argv[1]` is a JSON object: folder, brokers, redis."""
    options = json.loads(sys.argv[1])
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops its own parts first
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(options["folder"])
    redis: RedisServer | None = None
    cluster: MockCluster | None = None
    try:
        cluster = MockCluster(options["brokers"])
        for name, partitions in options["topics"].items():
            cluster.create_topic(name, partitions)
        if options["redis"]:
            redis = RedisServer(folder)
            redis.start()
        _say({"bootstrap": cluster.bootstrap, "redis_url": redis.url if redis else ""})
        _serve(_commands(cluster, redis), parent)
    except ConfigError as exc:
        _say({"error": str(exc)})
    except BrokenPipeError:
        pass  # the parent is gone
    finally:
        if redis:
            redis.stop()
        shutil.rmtree(folder, ignore_errors=True)
        if cluster:
            cluster.close()


def _commands(cluster: MockCluster, redis: RedisServer | None) -> dict[str, Callable[..., None]]:
    commands: dict[str, Callable[..., None]] = {
        "create_topic": cluster.create_topic,
        "broker_down": cluster.broker_down,
        "broker_up": cluster.broker_up,
        "set_rtt": cluster.set_rtt,
        "push_errors": cluster.push_errors,
        "clear_errors": cluster.clear_errors,
    }
    if redis is not None:
        commands |= {"redis_stop": redis.stop, "redis_start": redis.start}
    return commands


def _serve(commands: dict[str, Callable[..., None]], parent: int) -> None:
    buffer = b""
    while os.getppid() == parent:
        # A process forked from the parent may hold the pipe open after the parent's death: so look now and then.
        if not select.select([0], [], [], _PARENT_CHECK_S)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                commands[request["do"]](*request["args"])
                _say({})
            except (ConfigError, ValueError) as exc:
                _say({"error": str(exc)})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
