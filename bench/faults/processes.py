"""Workers and framers as children that can be killed, stopped, continued and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streams.embedded.lifeline import die_with_parent, free_port
from streams.worker.child import WorkerChild

__all__ = ["ROOT", "ChDbServer", "Child"]

ROOT = Path(__file__).resolve().parents[2]


class Child(WorkerChild):
    """`slodrift worker judge`, `worker archive`, or the framer (which has no ready line)."""

    def __init__(self, role: str, environ: Mapping[str, str], args: Sequence[str] = (), *, command: Sequence[str] = ()) -> None:
        super().__init__(role, environ, args)
        self.role = role
        if role == "framer":
            self._command = [sys.executable, "-c", "from streams.cli import main; main()", "framer"]
        if command:
            self._command = list(command)

    @property
    def pid(self) -> int:
        """Process number."""
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def peak_rss_mib(self) -> float:
        """Most memory it ever had, MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


class ChDbServer:
    """ClickHouse over HTTP as a process (bench/faults/clickhouse_server.py).

    Args:
        folder: Of the engine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.faults.clickhouse_server", str(self.folder), str(self.port)],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=die_with_parent(), start_new_session=True,  # noqa: PLW1509
        )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the ClickHouse process ended with code {self._process.wait()}")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
