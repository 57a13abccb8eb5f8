"""A command is one core's work: no threads of BLAS beside it, unless somebody asks for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
from streams.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
import numpy, scipy.linalg
a = numpy.ones((600, 600))
a @ a
scipy.linalg.cholesky(a @ a + 600 * numpy.eye(600))
print("threads", len(os.listdir("/proc/self/task")))
"""


def threads(**environ: str) -> int:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean | environ, capture_output=True, text=True, timeout=120, check=True
    )
    return int(done.stdout.rsplit("threads", 1)[1])


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_no_threads_of_blas() -> None:
    assert threads() == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="BLAS starts no threads on one core")
def test_what_is_set_is_kept() -> None:
    assert threads(OPENBLAS_NUM_THREADS="2") > 1
