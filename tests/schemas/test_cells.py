"""Names of cells, and the arithmetic that keeps all cells together within the caps of their pool."""

from __future__ import annotations

import doctest
import fnmatch
import random
from collections import Counter
from itertools import pairwise

import pytest

import schemas.cells
from detectors.caps import latch_limit, open_limit, velocity_limit
from schemas.cell_policy import cell_caps, part
from schemas.cells import MAX_CELLS, MAX_PARENT, Cell, cell_index, cell_of, cells_of, parent_of, split
from schemas.policy import Caps
from schemas.policy_file import PolicyError, parse_policy
from schemas.redis_keys import PoolKeys
from schemas.topics import partition_of

POOL = "chat/eu/h100"
HEAD = "apiVersion: slodrift/v1\nkind: Policy\n"


def test_examples_hold() -> None:
    assert doctest.testmod(schemas.cells).failed == 0


@pytest.mark.parametrize("pool", [POOL, "a", "ü~x", "x~0/2y", "~", "a\nb", "x" * MAX_PARENT])
@pytest.mark.parametrize("cells", [2, 9, 10, MAX_CELLS])
def test_a_name_says_which_cell_it_is(pool: str, cells: int) -> None:
    names = cells_of(pool, cells)
    assert [split(name) for name in names] == [Cell(pool, i, cells) for i in range(cells)]
    assert {parent_of(name) for name in names} == {pool}
    assert max(map(len, names)) <= 256
    assert [cell_of(name, "n", cells) for name in names] == names, "a cell is not split again"


@pytest.mark.parametrize(
    "name", ["x", "x~", "x~1", "x~2/2", "x~0/1", "x~0/65", "x~00/2", "x~-1/2", "~0/2", "x~0/2~1/2", "x~٠/2", ""]
)
def test_any_other_name_is_a_pool(name: str) -> None:
    assert split(name) is None
    assert parent_of(name) == name


def test_what_cannot_be_named_is_refused() -> None:
    for cells in (0, -1, MAX_CELLS + 1):
        with pytest.raises(ValueError, match="a pool has 1 to 64"):
            cells_of(POOL, cells)
    long = "x" * (MAX_PARENT + 1)
    assert cells_of(long, 2) == [long] == [cell_of(long, "n", 2)], "no name of a pool has more than 256 characters"


def test_a_name_needs_no_quoting_where_names_are_used() -> None:
    name = cell_of(POOL, "gpu-1", 4)
    assert PoolKeys("prod", name).tag == f"{{slodrift:prod:{name}}}"
    assert fnmatch.fnmatchcase(name, name)
    assert not set(name) & set("*?[]^\\ #&%{}\"'")


@pytest.mark.parametrize("cells", [2, 4, 8])
def test_numbered_nodes_fall_evenly_and_cells_get_partitions_of_their_own(cells: int) -> None:
    for pattern in ("gpu-{:03d}", "node-{}", "ip-10-0-0-{}", "host{:05d}.eu.example.com"):
        sizes = Counter(cell_index(pattern.format(i), cells) for i in range(200))
        assert all(0.9 * 200 / cells < sizes[i] < 1.1 * 200 / cells for i in range(cells)), pattern
    for n_partitions in (8, 16, 32, 64):
        assert len({partition_of(name, n_partitions) for name in cells_of(POOL, cells)}) == cells


def _divisions(n: int = 400, seed: int = 1):
    """Random caps, numbers of cells, and nodes in each cell."""
    rng = random.Random(seed)
    for _ in range(n):
        cells = rng.randint(2, 16)
        caps = Caps(
            share=rng.choice([0.0, 0.03, 0.1, 0.2, 0.5, 1.0]), absolute=rng.randint(1, 60), velocity=rng.randint(1, 30),
            velocity_share=rng.choice([0.01, 0.02, 0.1, 1.0]), min_pool=rng.randint(1, 12), small_pool=rng.randint(1, 12),
            latched_share=rng.choice([0.05, 0.2]),
        )  # fmt: skip
        yield caps, [rng.choice([0, rng.randint(0, 12), rng.randint(0, 300)]) for _ in range(cells)]


def test_cells_together_take_no_more_than_the_pool_could() -> None:
    taken = 0
    for caps, sizes in _divisions():
        cells = len(sizes)
        parts = [cell_caps(caps, i, cells) for i in range(cells)]
        opened = sum(open_limit(n, mine) for n, mine in zip(sizes, parts, strict=True))
        assert opened <= open_limit(sum(sizes), caps), (caps, sizes)
        assert sum(mine.absolute for mine in parts) == caps.absolute
        assert sum(mine.velocity for mine in parts) == caps.velocity
        taken += opened
    assert taken > 1000, "caps of zero would pass"


def test_new_opens_of_all_cells_are_bounded_by_the_number_and_by_one_a_small_cell() -> None:
    beyond = 0
    for caps, sizes in _divisions():
        n, cells = sum(sizes), len(sizes)
        opened = sum(velocity_limit(size, cell_caps(caps, i, cells)) for i, size in enumerate(sizes))
        assert opened <= caps.velocity
        if all(caps.velocity_share * size >= 1 for size in sizes):
            assert opened <= velocity_limit(n, caps)
        beyond += opened > velocity_limit(n, caps)
        if all(caps.latched_share * size >= 1 for size in sizes):
            assert sum(latch_limit(size, caps.latched_share) for size in sizes) <= latch_limit(n, caps.latched_share)
    assert beyond, "the documented exception is not one"


def test_every_cell_may_open_something_or_the_policy_is_at_fault() -> None:
    rng = random.Random(2)
    for _ in range(200):
        cells = rng.randint(2, MAX_CELLS)
        limit = rng.randint(cells, 500)
        parts = [part(limit, i, cells) for i in range(cells)]
        assert sum(parts) == limit
        assert min(parts) >= 1
        assert all(a >= b for a, b in pairwise(parts))
    with pytest.raises(PolicyError, match=r"policy.yaml:4:21: cells is 8 and caps.velocity is 5, .* raise caps.velocity"):
        parse_policy(HEAD + 'pools:\n  "chat/*": {cells: 8}\n', "policy.yaml")
    assert parse_policy(HEAD + 'pools: {"chat/*": {cells: 8, caps: {velocity: 8}}}').for_pool(POOL).cells == 8


def test_a_cell_has_the_settings_of_its_pool_and_its_part_of_caps_and_inventory() -> None:
    nodes = [f"gpu-{i}" for i in range(10)]
    policy = parse_policy(
        HEAD
        + f"""pools:
  "*": {{tick_s: 2}}
  "chat/*/h100": {{mode: enforce, cells: 4, inventory: {nodes}, caps: {{absolute: 7}}}}
"""
    )
    whole, cells = policy.for_pool(POOL), [policy.for_pool(name) for name in cells_of(POOL, 4)]
    assert (whole.cells, whole.caps.absolute, whole.caps.min_pool) == (4, 7, 3)
    assert [(c.mode, c.tick_s, c.cells, c.caps.absolute, c.caps.velocity, c.caps.min_pool) for c in cells] == [
        ("enforce", 2, 1, 2, 2, 10), ("enforce", 2, 1, 2, 1, 10), ("enforce", 2, 1, 2, 1, 10), ("enforce", 2, 1, 1, 1, 10),
    ]  # fmt: skip
    assert sorted(node for cell in cells for node in cell.inventory or ()) == nodes
    assert policy.for_pool(f"{POOL}~0/4") is cells[0]
    assert policy.for_pool("chat/us/h100~0/4") == cells[0]
    assert policy.cells_of(POOL) == 4
    assert policy.cells_of(f"{POOL}~0/4") == policy.cells_of("other") == 1


def test_an_entry_for_a_cell_is_a_fault() -> None:
    with pytest.raises(PolicyError, match=r"entry 'chat/eu/h100~0/4' is a cell, .* write them below 'chat/eu/h100'"):
        parse_policy(HEAD + f'pools: {{"{POOL}~0/4": {{mode: enforce}}}}')
    for cells in ("0", "65", "two", "2.5"):
        with pytest.raises(PolicyError, match="cells is"):
            parse_policy(HEAD + f'pools: {{"chat": {{cells: {cells}}}}}')
