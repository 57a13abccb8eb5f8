"""A worker as a child process of ours, for the demo and for tests: started, waited for, ended or killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from schemas.errors import SlodriftError
from streams.embedded.lifeline import die_with_parent

__all__ = ["WorkerChild"]


class WorkerChild:
    """`slodrift worker ROLE` with a ready signal. As a context manager it is ended at the end.

    Args:
        role: judge, archive or all.
        environ: Settings (`EmbeddedStack.environ`), on top of this process's environment.
        args: Further arguments of the command.
    """

    def __init__(self, role: str, environ: Mapping[str, str], args: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-c", "from streams.cli import main; main()", "worker", role, *args]
        self._environ = {**os.environ, **environ}
        self._ready: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        self._said: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, deadline_s: float = 30.0) -> list[int]:
        """Start it and wait until it has taken over its partitions, which are returned.

        Raises:
            SlodriftError: It ended, or did not get ready in time; with what it said.
        """
        self.spawn()
        return self.wait_ready(deadline_s)

    def spawn(self) -> None:
        """Start it without waiting."""
        self.process = subprocess.Popen(
            self._command,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - one system call, looked up before the fork
        )
        for reader in (self._read_stdout, self._read_stderr):
            threading.Thread(target=reader, daemon=True).start()

    def wait_ready(self, deadline_s: float = 30.0) -> list[int]:
        """Wait until it has taken over its partitions; see `start`. Once it has, every call returns at once."""
        try:
            partitions = self._ready.get(timeout=deadline_s)
        except queue.Empty:
            raise SlodriftError(f"the worker is not ready after {deadline_s:g} s:\n{self.said}") from None
        if partitions is None:
            raise SlodriftError(f"the worker ended with code {self.wait()}:\n{self.said}")
        self._ready.put(partitions)
        return partitions

    @property
    def said(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._said)

    def terminate(self, deadline_s: float = 10.0) -> tuple[int, float]:
        """SIGTERM, then wait; returns the exit code and the seconds it took.

        Raises:
            subprocess.TimeoutExpired: It is still there after `deadline_s`.
        """
        began = time.monotonic()
        self._signal(signal.SIGTERM)
        return self.wait(deadline_s), time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no last words, no last snapshot."""
        self._signal(signal.SIGKILL)
        self.wait()

    def wait(self, deadline_s: float | None = None) -> int:
        """Exit code, once it has ended."""
        assert self.process is not None  # noqa: S101
        return self.process.wait(deadline_s)

    def __enter__(self) -> WorkerChild:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()

    def _signal(self, number: int) -> None:
        assert self.process is not None  # noqa: S101
        if self.process.poll() is None:
            self.process.send_signal(number)

    def _read_stdout(self) -> None:
        assert self.process is not None and self.process.stdout is not None  # noqa: S101, PT018
        with self.process.stdout as stdout:
            for line in stdout:
                if '"ready"' in line:
                    self._ready.put(json.loads(line)["partitions"])
        self._ready.put(None)

    def _read_stderr(self) -> None:
        assert self.process is not None and self.process.stderr is not None  # noqa: S101, PT018
        with self.process.stderr as stderr:
            for line in stderr:
                self._said.append(line)
