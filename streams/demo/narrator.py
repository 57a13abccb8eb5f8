"""Prints the story: one line an event, with the seconds since the start; colour only on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Narrator"]

_STYLE = {"FAULT": "bold red", "OPEN": "bold red", "HALF_OPEN": "bold yellow", "CLOSED": "bold green", "REPAIRED": "bold green",
          "refused": "red", "allowed": "green", "failed": "bold red", "done": "bold green"}  # fmt: skip
_WORD_WIDTH = 10
_PLAIN_WIDTH = 140


class Narrator:
    """Tells what happens.

    Args:
        console: Where to; default stdout. Rich leaves colour and boxes out when it is no terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH  # a file or a pipe has no width; rich would assume 80
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began_s

    def title(self, text: str) -> None:
        """A line of its own."""
        self._console.print(Text(text, style="bold"))

    def say(self, word: str, text: str) -> None:
        """One event: `word` says which kind."""
        line = Text(f"{self.elapsed_s:5.1f} s  ")
        line.append(f"{word:{_WORD_WIDTH}}", style=_STYLE.get(word, "cyan"))
        line.append(f" {text}")
        self._console.print(line)

    def lines(self, lines: Sequence[str]) -> None:
        """Text as it is."""
        for line in lines:
            self._console.print(Text(line))

    def table(self, title: str, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of a query, under the query's own column names."""
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for name in rows[0] if rows else ("no rows",):
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        self._console.print(table)
