"""A host that follows a pool by its cells: names, whom it asks, what it allows the cells together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from slodrift_client import AsyncBreakerClient, BreakerClient, Limits, cell_of, pools_of
from slodrift_client.asgi import header_subjects
from slodrift_client.cells import MAX_CELLS, Cells
from slodrift_client.checks import check
from slodrift_client.cli import main
from slodrift_client.contract import Refused
from slodrift_client.gate import Gate

from schemas import cells as ours
from schemas.contract import Entry, build, encode
from schemas.scopes import scope_of
from streams.embedded.redis_server import RedisServer

NOW_MS = 1_800_000_000_000
POOL = "chat/eu/h100"
NODES = [f"gpu-{i:03d}" for i in range(40)]
TENANT = "request:tenant:x"


class Host:
    """A gate over the four cells of a pool, with states put in as a reader would."""

    def __init__(self, *more: str, cells: int = 4, **fields: Any) -> None:
        self.now, self.seq = 0.0, 0
        self.gate = Gate("f", [POOL, *more], cells={POOL: cells}, clock=lambda: self.now, rng=random.Random(1), **fields)

    def write(
        self, pool: str, *subjects: str, mode: Any = "enforce", n_eligible: int = 100, cap: int = 10, **fields: Any
    ) -> None:
        self.seq += 1
        entries = [
            Entry(**{
                "scope": scope_of(subject), "subject": subject, "state": "OPEN", "version": (1, 1, 1), "tx": "t",
                "opened_ms": NOW_MS, "not_after_ms": NOW_MS + 300_000, **fields,
            })
            for subject in subjects
        ]  # fmt: skip
        head, raw = build(
            fleet="f", pool=pool, version=(1, 1, self.seq), entries=entries, n_eligible=n_eligible, cap=cap, mode=mode,
            issued_ms=NOW_MS,
        )  # fmt: skip
        self.gate._views[pool].offer(encode(head), raw, self.now)
        self.gate._rebuild()
        self.gate._report()


@pytest.mark.parametrize("pool", [POOL, "ü~x", f"{POOL}~1/4", f"{POOL}~4/4", f"{POOL}~0/2~1/2", "x" * 250, "x" * 251, "a\nb"])
def test_host_and_framer_name_cells_alike(pool: str) -> None:
    for cells in (1, 2, 9, 10, MAX_CELLS):
        assert pools_of(pool, cells) == ours.cells_of(pool, cells)
        for node in ("gpu-017", "ü", "", "x" * 256):
            assert cell_of(pool, node, cells) == ours.cell_of(pool, node, cells)
    assert MAX_CELLS == ours.MAX_CELLS
    for cells in (0, MAX_CELLS + 1):
        with pytest.raises(ValueError, match="a pool has 1 to 64"):
            pools_of(pool, cells)


def test_a_node_is_asked_of_its_cell_by_any_name() -> None:
    host = Host()
    mine = cell_of(POOL, "gpu-017", 4)
    host.write(mine, "gpu-017")
    allow = host.gate.allow
    assert [n for n in NODES if not allow(n)] == [n for n in NODES if not allow(n, POOL)] == ["gpu-017"]
    assert not allow("gpu-017", mine)
    assert allow("gpu-017", next(name for name in pools_of(POOL, 4) if name != mine))
    assert host.gate.decide("gpu-017", POOL).pool == mine
    assert (host.gate.decide("gpu-017").state, host.gate.decide("gpu-018").state) == ("OPEN", "CLOSED")
    host.now = 400.0  # over, and never heard of again
    assert allow("gpu-017")


def test_a_cell_has_no_say_about_nodes_of_another() -> None:
    host = Host()
    other = next(name for name in pools_of(POOL, 4) if name != cell_of(POOL, "gpu-017", 4))
    host.write(other, "gpu-017")
    assert host.gate.allow("gpu-017", POOL)
    assert host.gate.allow("gpu-017")


def test_beside_other_pools_the_pool_must_be_named() -> None:
    host = Host("other")
    host.write(cell_of(POOL, "gpu-017", 4), "gpu-017")
    assert not host.gate.allow("gpu-017", POOL)
    assert host.gate.allow("gpu-017", "other")
    assert host.gate.allow("gpu-017")
    assert host.gate.status().ambiguous == 1
    assert list(host.gate.status().pools) == [*pools_of(POOL, 4), "other"]


def test_a_class_is_judged_by_the_cell_of_the_request_and_of_the_pool_where_all_agree() -> None:
    host = Host()
    rng = random.Random(1)
    for i, name in enumerate(pools_of(POOL, 4)):
        node = next(n for n in NODES if cell_of(POOL, n, 4) == name)
        assert check(host.gate, [node, TENANT], POOL, rng).allowed
        host.write(name, TENANT, action="shed", admit_ratio=i / 10)
        assert not host.gate.passes(TENANT, name, "some-key-9")
        assert host.gate.passes(TENANT, POOL, "some-key-9") is (i < 3)
        assert host.gate.decide(TENANT, POOL).state == ("OPEN" if i == 3 else "CLOSED")
    assert host.gate.decide(TENANT, POOL).admit_ratio == 0.3, "the cell that refuses least"
    keys = [f"k{i}" for i in range(2000)]
    assert 500 < sum(host.gate.passes(TENANT, POOL, key) for key in keys) < 700


def test_a_request_to_a_node_is_a_request_to_its_cell() -> None:
    host = Host()
    first, second = pools_of(POOL, 4)[:2]
    host.write(first, "pool:", TENANT, action="shed", admit_ratio=0.0)
    for name in (first, second):
        for _ in range(100):  # a bound on refusals needs requests
            host.gate.asked(name)
    by_cell = {name: next(n for n in NODES if cell_of(POOL, n, 4) == name) for name in (first, second)}
    for name, node in by_cell.items():
        for pool in (POOL, None):
            assert host.gate.pool_for(pool, [TENANT, node]) == name
            answer = check(host.gate, [node, TENANT, "pool:"], pool, random.Random(1), key="k")
            assert answer.allowed is (name != first)
    assert host.gate.pool_for(POOL, [TENANT]) == POOL
    assert host.gate.pool_for("other", ["n"]) == "other"
    scope = {"headers": [(b"x-slodrift-subject", by_cell[first].encode()), (b"x-slodrift-tenant", b"x")]}
    assert not check(host.gate, header_subjects(scope), POOL, random.Random(1), key="k").allowed


def test_probes_go_to_the_cell() -> None:
    host = Host()
    mine = cell_of(POOL, "gpu-017", 4)
    host.write(mine, "gpu-017", state="HALF_OPEN", action="eject")
    assert not host.gate.allow("gpu-017")
    with host.gate.probe("gpu-017", POOL) as lease:
        assert lease
        assert not host.gate.probe("gpu-017", mine), "one at a time, by whatever name"
    assert not host.gate.probe("gpu-018", POOL)


def test_what_all_cells_may_take_is_what_the_host_allows_the_pool() -> None:
    rng = random.Random(5)
    for _ in range(300):
        cells, sizes = rng.randint(2, 12), []
        limits = Limits(max_open=rng.randint(1, 40), max_open_ratio=rng.choice([0.05, 0.1, 0.3]))
        host = Host(cells=cells, limits=limits)
        taken = 0
        for name in pools_of(POOL, cells):
            n = rng.randint(0, 120)
            sizes.append(n)
            for k in range(12, -1, -1):  # as many as it takes at once
                try:
                    host.write(name, *NODES[:k], n_eligible=n, cap=12)
                except Refused:
                    continue
                break
            taken += k
        whole = Limits(limits.max_open_ratio, limits.max_open)
        assert taken <= min(whole.max_open, int(whole.max_open_ratio * sum(sizes))), (limits, sizes)


def test_a_size_given_for_the_pool_is_divided() -> None:
    followed = Cells([POOL, "other"], {POOL: 4})
    assert [followed.size(name, {POOL: 41, "other": 7}) for name in followed.names] == [11, 11, 11, 11, 7]
    assert [followed.size(name, {f"{POOL}~0/4": 20, POOL: 40}) for name in followed.names] == [20, 10, 10, 10, None]
    assert [followed.limits(name, Limits(max_open=6)).max_open for name in followed.names] == [2, 2, 1, 1, 6]


def test_cells_of_nothing_and_cells_twice_are_mistakes() -> None:
    with pytest.raises(ValueError, match="none of the pools"):
        Gate("f", [POOL], cells={"chat": 4})
    with pytest.raises(ValueError, match="a pool has 1 to 64"):
        Gate("f", [POOL], cells={POOL: 65})
    with pytest.raises(ValueError, match="name one of them"):
        Gate("f", [POOL, f"{POOL}~0/4"], cells={POOL: 4})
    assert list(Gate("f", [POOL], cells={POOL: 1}).status().pools) == [POOL]


def test_the_service_takes_the_number_of_cells(capsys: pytest.CaptureFixture[str]) -> None:
    for word, said in ((f"{POOL}=four", "--cells"), ("chat=4", "none of the pools")):
        with pytest.raises(SystemExit, match="2"):
            main(["serve", "--pool", POOL, "--cells", word])
        assert said in capsys.readouterr().err


async def test_clients_read_every_cell(own_server: RedisServer) -> None:
    host = Host()
    with BreakerClient(own_server.url, "f", [POOL], cells={POOL: 4}) as client:
        assert client._reader.head_keys == [f"{{slodrift:f:{name}}}:head" for name in pools_of(POOL, 4)]
    aio = AsyncBreakerClient(own_server.url, "f", [POOL], cells={POOL: 2})
    assert list(aio.status().pools) == pools_of(POOL, 2)
    await aio.close()
    assert host.gate.allow("gpu-1")
