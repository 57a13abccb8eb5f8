"""The tools of the faults do what they say: a proxy that breaks connections, an answer that is known, a table that can fail."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults.case import Case
from bench.faults.proxy import Proxy, ProxyLoop
from bench.faults.registry import FAULTS
from bench.faults.side_by_side import Batch, batches, run_batches
from bench.faults.table import select
from bench.faults.workload import SLOW, T0_S, answer_of, load, story


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers what it is told."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def _answer(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1024):
            connection.sendall(data)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    loop = ProxyLoop()
    yield loop.proxy(echo)
    loop.close()


def ask(connection: socket.socket, timeout_s: float = 5.0) -> bytes:
    connection.settimeout(timeout_s)
    connection.sendall(b"hello")
    return connection.recv(16)


def answers(port: int) -> bool:
    """Whether a new connection gets an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            return ask(connection) == b"hello"
    except OSError:
        return False


def test_proxy_passes_holds_swallows_and_refuses(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        assert ask(connection) == b"hello"
        proxy.hole = True
        with pytest.raises(TimeoutError):
            ask(connection, 0.2)
        proxy.heal()
        connection.settimeout(5)
        assert connection.recv(16) == b"hello", "what was held passes"
    proxy.lose_answers = 1
    assert not answers(proxy.port)
    assert proxy.lost == 1
    assert answers(proxy.port)
    proxy.refuse = True
    assert not answers(proxy.port)


def test_known_answer_is_one_node_and_no_other() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answer = answer_of(story("p"), load(Path(folder)))
    assert [(d.subject, d.state) for d in answer.decisions] == [(SLOW, "OPEN"), (SLOW, "HALF_OPEN"), (SLOW, "OPEN")]
    assert answer.decisions[0].t > T0_S + 150, "it is slow from then on"


def test_every_fault_has_a_pool_of_its_own_and_the_short_table_is_part_of_the_long() -> None:
    assert len({f.pool for f in FAULTS}) == len({f.name for f in FAULTS}) == len(FAULTS) >= 35
    assert 8 <= len(select([], quick=True)) < len(FAULTS)
    assert not any(a.pool in b.pool for a in FAULTS for b in FAULTS if a is not b), "messages are told apart by it"
    assert Case("p").messages == []


def test_batches_hold_every_row_once_and_keep_apart_what_must_run_alone() -> None:
    made = batches(FAULTS)
    assert sorted(f.pool for b in made for f in b.faults) == sorted(f.pool for f in FAULTS)
    assert all(len({(f.group, f.alone, f.together) for f in b.faults}) == 1 for b in made)
    assert [b.alone for b in made] == sorted(b.alone for b in made), "alone comes last"
    together = [b for b in made if b.faults[0].together]
    assert len(together) == len({b.faults[0].group for b in together}), "what is played at once is not cut"


def test_a_batch_whose_process_dies_gives_rows_that_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "command", lambda self, report: [sys.executable, "-c", "raise SystemExit(7)"])
    chosen, said = select(["workers"]), list[str]()
    results = run_batches(chosen, 2, say=said.append)
    assert [r.fault for r in results] == [f.name for f in chosen]
    assert not any(r.holds for r in results)
    assert all("code 7" in line for line in [*said, *(r.measured for r in results)])
    assert len(run_batches(chosen, 1, stop_early=True, say=said.append)) < len(chosen), "nothing is begun after a row that fails"
