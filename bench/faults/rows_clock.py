"""Faults of the wall clock under our own processes: set forward, set back, set to and fro (LD_PRELOAD; needs a C compiler)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from bench.faults.case import Case, play
from bench.faults.registry import fault
from bench.faults.site import Failed, Site

__all__: list[str] = []

GROUP = "clock"


class _Clock:
    """A file with the offset, and the environment that makes a process obey it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Failed("there is no C compiler here: the fault cannot be injected")
        library = folder / "clock_shim.so"
        if not library.exists():
            source = Path(__file__).with_name("clock_shim.c")
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        self._path = folder / "clock_offset"
        self.set(0)
        self.environ = {"LD_PRELOAD": str(library), "FAULTS_CLOCK": str(self._path)}

    def set(self, seconds: int) -> None:
        """Move the wall clock to so far from the truth."""
        with self._path.open("r+b" if self._path.exists() else "w+b") as file:
            file.write(struct.pack("@q", seconds))


def _under_clock(site: Site, case: Case, jumps: list[tuple[float, int]]) -> Case:
    clock = _Clock(site.folder)
    shown = subprocess.run(["date", "+%s"], env={**clock.environ}, capture_output=True, check=True, text=True).stdout
    clock.set(7200)
    moved = subprocess.run(["date", "+%s"], env={**clock.environ}, capture_output=True, check=True, text=True).stdout
    clock.set(0)
    if not 7195 < int(moved) - int(shown) < 7210:
        raise Failed("the clock of a child does not move: the fault cannot be injected")
    for role in ("judge", "framer", "archive"):  # now: they would notice that the clock was tried
        getattr(site, role).terminate(15)
        setattr(site, role, site.start(role, **clock.environ))
    site.judge.wait_ready(40)
    site.archive.wait_ready(40)
    play(site, [case], 9.0, [(at, lambda by=by: clock.set(by)) for at, by in jumps])
    clock.set(0)
    return case


@fault(GROUP, "wall clock forward", "+2 h under judge, framer and archive", "decisions as without")
def forward(site: Site, pool: str) -> Case:
    return _under_clock(site, Case.plain(site, pool), [(3.0, 7200)])


@fault(GROUP, "wall clock back", "-2 h under judge, framer and archive", "decisions as without")
def back(site: Site, pool: str) -> Case:
    return _under_clock(site, Case.plain(site, pool), [(3.0, -7200)])


@fault(
    GROUP, "wall clock to and fro", "30 s forward and back every half second", "decisions as without; leases go by another clock"
)
def strobe(site: Site, pool: str) -> Case:
    return _under_clock(site, Case.plain(site, pool), [(2.0 + 0.5 * i, 30 if i % 2 else -30) for i in range(13)])
