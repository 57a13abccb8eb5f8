"""Cells of a hot pool: with `cells: 4` in the policy a pool is judged as four, `chat/eu/h100~0/4` to `~3/4`, each with its nodes.

    client = BreakerClient(url, fleet="prod", pools=["chat/eu/h100"], cells={"chat/eu/h100": 4})
    client.allow("gpu-017")  # asks the cell of the node

An agent that writes frames itself names the cell in them: `cell_of(pool, node, cells)`. The same as `schemas.cells` of slodrift,
which this package does not import; a test holds both sides together.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slodrift_client.subjects import kind_of

if TYPE_CHECKING:
    from slodrift_client.view import Limits

__all__ = ["Cells", "cell_of", "pools_of"]

MAX_CELLS = 64
_LONGEST = 250
_NAME = re.compile(r"(.+)~(0|[1-9]\d?)/([1-9]\d?)", re.DOTALL | re.ASCII)


def cell_of(pool: str, node: str, cells: int) -> str:
    """Name of the cell of `pool` that judges `node`: of so many, by the CRC-32 of the node's name.

    Raises:
        ValueError: A pool cannot have so many cells.
    """
    names = pools_of(pool, cells)
    return names[zlib.crc32(node.encode()) % len(names)]


def pools_of(pool: str, cells: int) -> list[str]:
    """Names of all cells of `pool`, or its own where it is not split.

    Raises:
        ValueError: As `cell_of`.
    """
    if not 1 <= cells <= MAX_CELLS:
        raise ValueError(f"{cells} cells of {pool}: a pool has 1 to {MAX_CELLS}")
    if cells == 1 or len(pool) > _LONGEST or _is_cell(pool):
        return [pool]
    return [f"{pool}~{i}/{cells}" for i in range(cells)]


def _is_cell(pool: str) -> bool:
    found = _NAME.fullmatch(pool)
    return (
        found is not None and int(found[2]) < int(found[3]) <= MAX_CELLS and int(found[3]) > 1 and not _NAME.fullmatch(found[1])
    )


class Cells:
    """Which pools a client reads, and which of them to ask.

    Args:
        pools: Pools to follow.
        cells: How many cells some of them have.

    Attributes:
        names: Pools to read: those of `pools`, with the cells of split ones in their place.
        of: Names of the cells of each split pool.
        parent: The split pool of each cell.

    Raises:
        ValueError: `cells` names a pool that is not followed, or a number that cannot be.
    """

    def __init__(self, pools: Sequence[str], cells: Mapping[str, int] | None) -> None:
        counts = dict(cells or {})
        if unknown := [pool for pool in counts if pool not in pools]:
            raise ValueError(f"cells names {unknown[0]!r}, which is none of the pools that are followed")
        self.of = {pool: names for pool, n in counts.items() if (names := tuple(pools_of(pool, n))) != (pool,)}
        self.parent = {name: pool for pool, names in self.of.items() for name in names}
        self.names = [name for pool in pools for name in self.of.get(pool, (pool,))]
        if len(set(self.names)) != len(self.names):
            raise ValueError("a cell is followed by its own name and as one of its pool: name one of them")

    def owner(self, pool: str, subject: str) -> str | None:
        """Pool that judges `subject`: the cell of a node; None for what each cell of `pool` judges for itself (classes...)."""
        names = self.of.get(pool)
        if names is None:
            return pool
        return None if kind_of(subject) else names[zlib.crc32(subject.encode()) % len(names)]

    def size(self, pool: str, sizes: Mapping[str, int]) -> int | None:
        """Nodes of a pool that is read by the host's own configuration: of a cell, its part of the whole."""
        whole = self.parent.get(pool)
        if whole is None or whole not in sizes or pool in sizes:
            return sizes.get(pool)
        return -(-sizes[whole] // len(self.of[whole]))

    def limits(self, pool: str, limits: Limits) -> Limits:
        """What a pool that is read may take: a cell has its part, and no "one at least", or all of them would have one."""
        whole = self.parent.get(pool)
        if whole is None:
            return limits
        names = self.of[whole]
        most = limits.max_open // len(names) + (names.index(pool) < limits.max_open % len(names))
        return replace(limits, max_open=most, min_open=0)
