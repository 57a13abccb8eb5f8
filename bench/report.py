"""One table a benchmark, with what is needed to repeat it: command, seed, machine, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from schemas.errors import SourceError

__all__ = ["Report", "data_folder", "machine"]


@dataclass
class Report:
    """Rows under named columns, and notes below them. `bars` says which promised figures hold."""

    name: str
    title: str
    columns: Sequence[str]
    seed: int
    rows: list[Sequence[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bars: list[tuple[str, bool]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, *cells: Any) -> None:
        """Append a row, one cell a column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def bar(self, text: str, holds: bool) -> None:
        """State a promised figure and whether it was reached."""
        self.bars.append((text, bool(holds)))

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(
            {
                "bench": self.name,
                "seed": self.seed,
                **machine(),
                "seconds": round(time.monotonic() - self.started, 1),
                "columns": list(self.columns),
                "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
                "bars": [{"bar": text, "holds": holds} for text, holds in self.bars],
                "notes": self.notes,
            },
            default=float,
        )

    def print(self, *, as_json: bool = False) -> None:
        """Write the report to stdout."""
        if as_json:
            print(self.to_json())
            return
        console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
        table = Table(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(_text(cell) for cell in row))
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}")
        for text, holds in self.bars:
            console.print(f"bar {'holds' if holds else 'MISSED'}: {text}", markup=False)
        facts = machine()
        console.print(
            f"seed {self.seed}, {time.monotonic() - self.started:.0f} s, {facts['date']}, {facts['machine']}, "
            + ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
        )


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def machine() -> dict[str, Any]:
    """Machine, versions and date of this run."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    packages = ("slodrift", "numpy", "scipy", "river")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{cpu}, {os.cpu_count()} cores",
        "versions": {"Python": platform.python_version(), **{p: importlib.metadata.version(p) for p in packages}},
        "command": " ".join(["slodrift", *sys.argv[1:]]),
    }


def data_folder(name: str) -> Path:
    """Folder of a public data set below the folder in SLODRIFT_DATA.

    Raises:
        SourceError: The variable is not set or the folder is not there.
    """
    root = os.environ.get("SLODRIFT_DATA")
    if not root:
        raise SourceError("this benchmark reads public data: set SLODRIFT_DATA to the folder that holds them (docs/detection.md)")
    folder = Path(root) / name
    if not folder.is_dir():
        raise SourceError(
            f"{folder} does not exist: SLODRIFT_DATA must hold the folder {name!r} (docs/detection.md says where from)"
        )
    return folder
