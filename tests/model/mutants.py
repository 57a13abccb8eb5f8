"""Takes each guard of the decision path away in a copy of the tree and runs the tests that must notice.

python tests/model/mutants.py [--jobs N] [--only NAME,...] [--part I/N]; exit code 1 if one survives or an edit does not fit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutants_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_UNSHRUNK = """from hypothesis import Phase, settings
settings.register_profile("unshrunk", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("unshrunk")
"""  # whoever kills a mutant need not find the smallest way
_FAILED = 1  # pytest: tests ran and some failed; anything else kills nobody


def fits(mutant: Mutant, root: Path = ROOT) -> bool:
    """Whether the edit can be made: its text is there once."""
    return (root / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


def copy_tree(target: Path) -> None:
    """The files that git knows or would take, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Desk:
    """One copy of the tree; mutants come and go in it."""

    _stamp = int(time.time()) - 10_000_000
    _lock = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_tree(folder)
        (folder / "unshrunk.py").write_text(_UNSHRUNK, encoding="utf-8")

    def run(self, tests: tuple[str, ...]) -> tuple[int, str]:
        """pytest's exit code, and the test that failed first."""
        env = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'client'}", "SLODRIFT_MODEL": "mutant",
               "SLODRIFT_MODEL_SHRINK": "0"}  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-m", "not kafka", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-p", "unshrunk", *tests], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        failed = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        return done.returncode, failed.rpartition("/")[2] or done.stdout[-300:]

    def mutate(self, mutant: Mutant) -> tuple[bool, str]:
        """Whether the tests noticed, and which."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, text.replace(mutant.old, mutant.new))
            code, said = self.run(mutant.tests)
        finally:
            self._write(path, text)
        return code == _FAILED, said

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: Python takes compiled files for fresh by size and second."""
        path.write_text(text, encoding="utf-8")
        with self._lock:
            Desk._stamp += 1
            os.utime(path, (Desk._stamp, Desk._stamp))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="names with commas")
    parser.add_argument("--part", default="1/1", help="the Ith of N equal parts")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    only = set(filter(None, options.only.split(",")))
    chosen = [m for i, m in enumerate(MUTANTS) if i % parts == part - 1 and (not only or m.name in only)]
    stale = [m.name for m in chosen if not fits(m)]
    if stale:
        print(f"these edits do not fit the code any more: {', '.join(stale)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="slodrift-mutants-") as folder:
        desks: SimpleQueue[Desk] = SimpleQueue()
        for i in range(options.jobs):
            desks.put(Desk(Path(folder) / str(i)))

        def judge(mutant: Mutant | None) -> tuple[bool, str, float]:
            desk, began_s = desks.get(), time.monotonic()
            try:
                if mutant is not None:
                    return *desk.mutate(mutant), time.monotonic() - began_s
                code, said = desk.run(tuple(sorted({test for m in chosen for test in m.tests})))
                return code == 0, said, time.monotonic() - began_s
            finally:
                desks.put(desk)

        whole, said, took_s = judge(None)
        if not whole:
            print(f"the tests do not pass without a mutant: {said}")
            return 1
        print(f"all tests pass without a mutant ({took_s:.0f} s)")
        survivors = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, (killed, by, took_s) in zip(chosen, pool.map(judge, chosen), strict=True):
                verdict = f"killed by {by}" if killed else "SURVIVED"
                print(f"{mutant.name:18} {mutant.guard:58} {took_s:5.1f} s  {verdict}", flush=True)
                survivors += [] if killed else [mutant.name]
    print(f"{len(chosen)} mutants, {len(survivors)} survived{': ' + ', '.join(survivors) if survivors else ''}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
