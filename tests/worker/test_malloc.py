"""The worker's own settings of malloc, in a process of its own: they cannot be taken back."""

import platform
import subprocess
import sys

import pytest

SCRIPT = "from streams.worker.malloc import keep_little; print(keep_little())"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt of glibc")
def test_glibc_takes_them() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
