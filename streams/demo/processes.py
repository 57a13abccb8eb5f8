"""Starts `slodrift` commands as processes of their own, the way a server does, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from schemas.errors import SlodriftError

__all__ = ["Command", "ProcessEnded"]

_STOP_DEADLINE_S = 10.0
_MAX_WORDS = 500


class ProcessEnded(SlodriftError):
    """A process that should run has ended."""


class Command:
    """One running `slodrift NAME ARGS`; a context manager that ends it.

    Args:
        args: Command and its arguments.
        environ: Variables on top of this process's own.
        log: File for what it says.
    """

    def __init__(self, args: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.name = f"slodrift {' '.join(args)}"
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from streams.cli import main; main()", *args],
                env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which stops its parts in order
            )  # fmt: skip

    def check(self) -> None:
        """Nothing, while it runs.

        Raises:
            ProcessEnded: It ended; the message carries its last words.
        """
        if (code := self._process.poll()) is not None:
            raise ProcessEnded(f"{self.name} ended with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The last line it said, shortened."""
        said = self._log.read_text(errors="replace").strip().splitlines()
        return said[-1][:_MAX_WORDS] if said else "it said nothing"

    def wait(self, deadline_s: float) -> int:
        """Exit code, once it ends by itself; it is killed at the deadline."""
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def stop(self) -> int:
        """Ask it to end (SIGTERM), wait, and kill it when it does not. Returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
