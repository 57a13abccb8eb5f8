"""Cells of a hot pool: a pool that is too big for one partition is judged as several pools, each with some of its nodes.

A cell is a pool of its own, named `POOL~i/k`, cell i of k: `chat/eu/h100~0/4`. No character of the suffix is special in Redis
keys and their access rules, in globs of policies, or in the query of a URL. And since CRC-32 is linear, the names of up to eight
cells differ in the low bits of their hash: they are in different partitions where a topic has a multiple of eight.

A node is in the cell that the CRC-32 of its name says, so that whoever knows the pool's number of cells (`cells` in its policy)
agrees. Numbered names fall evenly into 2, 4 or 8 cells; into other numbers of cells as if drawn. `slodrift_client.cells` computes
the same by itself; a test holds both sides together.

>>> cell_of("chat/eu/h100", "gpu-017", 4)
'chat/eu/h100~1/4'
>>> cell_of("chat/eu/h100", "gpu-017", 1)
'chat/eu/h100'
>>> cells_of("chat/eu/h100", 2)
['chat/eu/h100~0/2', 'chat/eu/h100~1/2']
>>> split("chat/eu/h100~3/4")
Cell(pool='chat/eu/h100', number=3, cells=4)
>>> split("chat/eu/h100~4/4") is None  # there is no fifth
True
>>> parent_of("chat/eu/h100~3/4"), parent_of("chat/eu/h100")
('chat/eu/h100', 'chat/eu/h100')
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

__all__ = ["MAX_CELLS", "MAX_PARENT", "Cell", "cell_index", "cell_of", "cells_of", "parent_of", "split"]

MAX_CELLS = 64
MAX_PARENT = 250
"""Characters of the name of a pool that can be split: names of pools, those of cells among them, have 256 at most."""

_NAME = re.compile(r"(.+)~(0|[1-9]\d?)/([1-9]\d?)", re.DOTALL | re.ASCII)


class Cell(NamedTuple):
    """Cell `number` of the `cells` of `pool`."""

    pool: str
    number: int
    cells: int


def split(name: str) -> Cell | None:
    """What a name says if it is that of a cell, else None. A cell has no cells: `x~0/2~1/2` is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    cell = Cell(found[1], int(found[2]), int(found[3]))
    return cell if 1 < cell.cells <= MAX_CELLS and cell.number < cell.cells and not _NAME.fullmatch(cell.pool) else None


def parent_of(name: str) -> str:
    """The pool that a cell is part of; any other pool is its own."""
    cell = split(name)
    return name if cell is None else cell.pool


def cell_index(node: str, cells: int) -> int:
    """Number of the cell that `node` is in, of so many."""
    return zlib.crc32(node.encode()) % cells


def cell_of(pool: str, node: str, cells: int) -> str:
    """Name of the pool under which `node` of `pool` is judged: its cell, or `pool` itself where `cells_of` does not split it.

    Raises:
        ValueError: A pool cannot have so many cells.
    """
    names = cells_of(pool, cells)
    return names[0] if len(names) == 1 else names[cell_index(node, cells)]


def cells_of(pool: str, cells: int) -> list[str]:
    """Names of all cells of `pool`; its own name when it has one cell, is a cell already, or is too long for a suffix.

    Raises:
        ValueError: As `cell_of`.
    """
    if not 1 <= cells <= MAX_CELLS:
        raise ValueError(f"{cells} cells: a pool has 1 to {MAX_CELLS}")
    if cells == 1 or len(pool) > MAX_PARENT or split(pool) is not None:
        return [pool]
    return [f"{pool}~{index}/{cells}" for index in range(cells)]
