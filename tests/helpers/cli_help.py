"""The help text of a command, got in this process; an empty text if there is no such command."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from unittest import mock

from streams.cli import main

__all__ = ["help_of"]


@functools.cache
def help_of(*command: str) -> str:
    """Text of `slodrift COMMAND --help`, wide enough that no option is cut."""
    out = io.StringIO()
    wide = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([*command, "--help"])
        except SystemExit as end:
            return out.getvalue() if end.code in (0, None) else ""
    return out.getvalue()
