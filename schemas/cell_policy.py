"""Settings of one cell of a pool (`schemas.cells`): those of the pool, with its caps divided so that the cells together never
take more than the pool could as a whole.

With n_i nodes in cell i and N in all, and floor(a) + floor(b) <= floor(a + b):

* `share` adds up by itself: the sum of floor(share * n_i) is at most floor(share * N).
* `absolute` and `velocity` are divided, a remainder goes to the first cells: the sums are those of the pool.
* "One of a small pool" would be one of every small cell. So a cell with fewer than `small_pool` nodes takes none: `min_pool` is
  `small_pool` there. Where a cell takes any, it has `small_pool` nodes, so the pool has, and the first two lines are its limit.

`velocity_share` keeps its "one at least" in every cell, since a cell does not know N and could else open nothing below 50 nodes.
So cells of fewer nodes than 1 / `velocity_share` may open one each in the time in which the whole pool would open fewer, and
`velocity` as a number is what bounds them together; the same for the "one at least" of orders and of the flap latch.
"""

from __future__ import annotations

from schemas.cells import Cell, cell_index
from schemas.policy import Caps, PoolPolicy

__all__ = ["cell_caps", "cell_policy", "part"]


def part(limit: int, index: int, cells: int) -> int:
    """What cell `index` of `cells` has of a number for all of them; the parts add up to `limit`."""
    return limit // cells + (index < limit % cells)


def cell_caps(caps: Caps, index: int, cells: int) -> Caps:
    """Caps of one cell of a pool with `caps`."""
    return caps.model_copy(
        update={
            "absolute": part(caps.absolute, index, cells),
            "velocity": part(caps.velocity, index, cells),
            "min_pool": max(caps.min_pool, caps.small_pool),
        }
    )


def cell_policy(policy: PoolPolicy, cell: Cell) -> PoolPolicy:
    """Settings of `cell`, whose pool has `policy`: with its part of the caps and of the inventory."""
    inventory = policy.inventory
    if inventory is not None:
        inventory = tuple(node for node in inventory if cell_index(node, cell.cells) == cell.number)
    return policy.model_copy(update={"cells": 1, "inventory": inventory, "caps": cell_caps(policy.caps, cell.number, cell.cells)})
