"""The protocol model at length, in several processes with seeds of their own.

python tests/model/model_long.py [--examples N] [--steps N] [--jobs N] [--seed N]; exit code 1 if an invariant breaks anywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DONE = re.compile(r"(\d+) examples, (\d+) steps")


class Run:
    """One process: its share of the examples under its own seed; what it says is shown as it comes."""

    def __init__(self, examples: int, steps: int, seed: int) -> None:
        self.examples = self.steps = 0
        self._seed = seed
        command = [sys.executable, "-m", "pytest", "-q", "-s", "--no-header", "-p", "no:cacheprovider"]
        self.process = subprocess.Popen(
            [*command, f"--hypothesis-seed={seed}", "tests/model/test_protocol_model.py"],
            cwd=ROOT, env={**os.environ, "SLODRIFT_MODEL": f"{examples}x{steps}"}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"[seed {self._seed}] {line}", end="", flush=True)
            if done := _DONE.search(line):
                self.examples, self.steps = int(done[1]), int(done[2])

    def holds(self) -> bool:
        """Wait for its end."""
        code = self.process.wait()
        self._reader.join()
        return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="in all; %(default)s")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="of the first process; the others count on; drawn by default")
    chosen = parser.parse_args()
    began = time.monotonic()
    first = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    shares = [chosen.examples // chosen.jobs + (i < chosen.examples % chosen.jobs) for i in range(chosen.jobs)]
    runs = [Run(n, chosen.steps, first + i) for i, n in enumerate(shares)]
    verdicts = [run.holds() for run in runs]
    total = f"{sum(r.examples for r in runs)} examples, {sum(r.steps for r in runs)} steps"
    seeds = f"seeds {first} to {first + chosen.jobs - 1}"
    print(f"{'holds' if all(verdicts) else 'FAILS'}: {total}, {chosen.jobs} processes, {seeds}, {time.monotonic() - began:.0f} s")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
