"""Puts what was decoded for a pool that is split into cells (`schemas.cells`) under the names of its cells.

What concerns a node goes to the cell of the node: requests, its state, a deploy on it, an order about it. What concerns the pool
goes to each of its cells: a deploy of everything, an order about a session, a class or the pool. Offsets grow in each cell, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from schemas.cells import cell_index, cells_of
from schemas.scopes import scope_of
from schemas.telemetry import OverrideEvent, StateEvent
from streams.framing import PoolRows, rows_of

__all__ = ["cell_names", "in_cells"]


def in_cells(pools: Mapping[str, PoolRows], n_cells: Callable[[str], int]) -> dict[str, PoolRows]:
    """The same rows with those of split pools by cell; a cell without any is left out.

    Args:
        pools: By name of the pool.
        n_cells: How many cells a pool has, `Policy.cells_of`.
    """
    out: dict[str, PoolRows] = {}
    for pool, rows in pools.items():
        names = cells_of(pool, n_cells(pool))
        out.update({pool: rows} if len(names) == 1 else _by_cell(rows, names))
    return out


def cell_names(event: StateEvent, names: list[str]) -> list[str]:
    """Which of the cells `names` an event concerns."""
    node = event.node
    if isinstance(event, OverrideEvent) and scope_of(event.subject) == "node":
        node = event.subject
    return [names[cell_index(node, len(names))]] if node else names


def _by_cell(rows: PoolRows, names: list[str]) -> dict[str, PoolRows]:
    batch = rows.batch
    of_node = np.array([cell_index(node, len(names)) for node in batch.nodes], np.intp)
    of_row = of_node[batch.node]
    out = {}
    for index, name in enumerate(names):
        mine = np.flatnonzero(of_row == index)
        out[name] = PoolRows(rows_of(batch, mine, name), rows.row_offset[mine])
    for event, offset in zip(rows.events, rows.event_offset, strict=True):
        for name in cell_names(event, names):
            out[name].events.append(msgspec.structs.replace(event, pool=name))
            out[name].event_offset.append(offset)
    return {name: part for name, part in out.items() if len(part.batch) or part.events}
