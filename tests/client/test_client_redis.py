"""The client against a real server: what is written becomes visible, and what happens to Redis opens and closes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from slodrift_client import BreakerClient, Decision

from schemas.contract import Entry
from schemas.errors import SinkBackpressure
from schemas.redis_keys import PoolKeys
from sinks.redis_decisions import DecisionSink, connect
from streams.embedded.redis_server import RedisServer

pytestmark = pytest.mark.embedded

DEADLINE_S = 20.0


class Judge:
    """Writes states of pool "p" in a fleet of its own, synchronously."""

    def __init__(self, server: RedisServer, fleet: str, epoch: int = 5) -> None:
        self._server = server
        self.fleet = fleet
        self.epoch = epoch
        self.seq = 0
        self.entries: list[Entry] = []
        self._loop = asyncio.new_event_loop()
        self._redis = connect(server.url)
        self._sink = DecisionSink(self._redis, fleet)

    def write(self, *subjects: str, state: Any = "OPEN", mode: Any = "enforce", **fields: Any) -> None:
        self.seq += 1
        now_ms = self._sink.now_ms()
        self.entries = [
            Entry(**{
                "scope": "node", "subject": s, "state": state, "version": (1, self.epoch, self.seq), "tx": "t",
                "opened_ms": now_ms,
                "not_after_ms": now_ms + 300_000, **fields,
            })
            for s in subjects
        ]  # fmt: skip
        self._loop.run_until_complete(
            self._sink.assert_state(
                "p", self.entries, version=(1, self.epoch, self.seq), n_eligible=100, cap=10, mode=mode
            )
        )  # fmt: skip

    def beat(self) -> None:
        self._loop.run_until_complete(self._sink.heartbeat("p"))

    def beat_until_it_works(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(SinkBackpressure):
                return self.beat()
        raise AssertionError("Redis did not come back")

    def close(self) -> None:
        self._loop.run_until_complete(self._sink.close())
        self._loop.close()


class Told:
    """Waits for what a client reports."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.decisions: list[Decision] = []

    def __call__(self, decision: Decision) -> None:
        with self._changed:
            self.decisions.append(decision)
            self._changed.notify_all()

    def wait(self, subject: str, state: str) -> Decision:
        def found() -> Decision | None:
            return next((d for d in reversed(self.decisions) if (d.subject, d.state) == (subject, state)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, DEADLINE_S), f"{subject} did not become {state}"
        decision = found()
        assert decision is not None
        return decision


def poll_until(client: BreakerClient, condition: Callable[[], bool]) -> None:
    """Wait on the client's own loop: a callback is the only event it has."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, client.status()
        pause.wait(0.01)


_fleets = (f"fleet{i}" for i in range(10_000))


@pytest.fixture
def judge(redis_server: RedisServer) -> Iterator[Judge]:
    judge = Judge(redis_server, next(_fleets))
    yield judge
    judge.close()


@pytest.fixture
def told() -> Told:
    return Told()


@contextlib.contextmanager
def following(server: RedisServer, judge: Judge, told: Told, **fields: Any) -> Iterator[BreakerClient]:
    with BreakerClient(server.url, judge.fleet, ["p"], **fields) as client:
        client.on_change(told)
        yield client


def test_decisions_become_visible_and_go_again(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    with following(redis_server, judge, told) as client:
        assert client.allow("n1")
        judge.write("n1")
        decision = told.wait("n1", "OPEN")
        assert not decision.allowed
        assert not client.allow("n1")
        assert client.allow("n2")
        judge.write("n1", state="HALF_OPEN")
        told.wait("n1", "HALF_OPEN")
        with client.probe("n1") as lease:
            assert lease
        judge.write()
        told.wait("n1", "CLOSED")
        assert client.allow("n1")
        assert not client.status().degraded


def test_doorbell_is_faster_than_the_poll(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    judge.write()
    with following(redis_server, judge, told) as client:
        assert client.wait(DEADLINE_S)
        delays = []
        for i in range(10):
            told.decisions.clear()
            judge.write("n1") if i % 2 == 0 else judge.write()
            started = time.monotonic()
            told.wait("n1", "OPEN" if i % 2 == 0 else "CLOSED")
            delays.append(time.monotonic() - started)
        assert sorted(delays)[5] < 0.5  # the poll alone takes 0.5 s in the median; the bell takes about a millisecond


def test_lost_doorbells_cost_at_most_a_poll(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    admin = redis.Redis.from_url(redis_server.url)
    with following(redis_server, judge, told) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        for _ in range(3):
            for subject in ("n2", "n1"):
                admin.client_kill_filter(_type="pubsub")
                told.decisions.clear()
                judge.write(subject)
                told.wait(subject, "OPEN")
        assert not client.allow("n1")
    admin.close()


def test_flush_closes_nothing_and_heals(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    with following(redis_server, judge, told) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        admin = redis.Redis.from_url(redis_server.url)
        admin.flushall()
        admin.close()
        polls = client.status().polls
        poll_until(client, lambda: client.status().polls >= polls + 2)
        assert not client.allow("n1")
        judge.beat()
        poll_until(client, lambda: client.status().pools["p"].hb == 1)
        judge.write("n2")
        told.wait("n1", "CLOSED")
        assert not client.allow("n2")


def test_flush_does_not_let_an_old_judge_in(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    with following(redis_server, judge, told) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        admin = redis.Redis.from_url(redis_server.url)
        admin.flushall()
        admin.close()
        zombie = Judge(redis_server, judge.fleet, epoch=4)
        zombie.write("n2")
        poll_until(client, lambda: client.status().pools["p"].refused.get("rollback", 0) > 0)
        assert client.allow("n2")
        assert not client.allow("n1")
        assert client.status().degraded
        zombie.close()


def test_restart_without_data_closes_nothing_and_heals(own_server: RedisServer, told: Told) -> None:
    judge = Judge(own_server, "restart")
    with following(own_server, judge, told) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        own_server.stop()
        poll_until(client, lambda: client.status().errors > 0)
        assert not client.allow("n1")
        own_server.start()
        judge.beat_until_it_works()
        poll_until(client, lambda: client.status().pools["p"].hb >= 1)
        judge.write()
        told.wait("n1", "CLOSED")
        assert client.status().last_error == ""
    judge.close()


def test_forged_values_change_nothing(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    admin = redis.Redis.from_url(redis_server.url)
    keys = PoolKeys(judge.fleet, "p")
    with following(redis_server, judge, told) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        good_head = json.loads(admin.get(keys.head))  # type: ignore[arg-type]
        forgeries: list[Any] = [
            b"", b"rubbish", b"\xff" * 100, b"[" * 2000, json.dumps(good_head | {"seq": 99, "snap_sha256": "0" * 64}),
            json.dumps(good_head | {"pool": "q", "seq": 99}), json.dumps(good_head | {"gen": 0}), "x" * 100_000,
        ]  # fmt: skip
        for forged in forgeries:
            refused = sum(client.status().pools["p"].refused.values())
            admin.set(keys.head, forged)
            admin.publish(keys.doorbell, "look")
            poll_until(client, lambda n=refused: sum(client.status().pools["p"].refused.values()) > n)  # type: ignore[misc]
            assert not client.allow("n1")
        admin.delete(keys.head)
        admin.hset(keys.head, "a", "b")  # a key of a wrong type
        poll_until(client, lambda: "WRONGTYPE" in client.status().last_error)
        assert not client.allow("n1")
        judge.beat()
        poll_until(client, lambda: client.status().pools["p"].hb == 1)
    admin.close()


def test_bell_that_rings_without_end_does_not_make_the_client_spin(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    admin = redis.Redis.from_url(redis_server.url)
    keys = PoolKeys(judge.fleet, "p")
    judge.write()
    with following(redis_server, judge, told) as client:
        assert client.wait(DEADLINE_S)
        before, started = client.status().polls, time.monotonic()
        pipeline = admin.pipeline(transaction=False)
        for _ in range(3000):
            pipeline.publish(keys.doorbell, "x")
        pipeline.execute()
        judge.write("n1")
        told.wait("n1", "OPEN")
        assert client.status().polls - before <= 5 + (time.monotonic() - started) / 0.02
    admin.close()


def test_redis_that_never_answers_blocks_nobody(silent_url: str) -> None:
    started = time.monotonic()
    with BreakerClient(silent_url, "f", ["p"], timeout_s=0.05) as client:
        assert client.allow("n1")
        assert time.monotonic() - started < 5
        poll_until(client, lambda: client.status().errors >= 2)
        assert client.allow("n1")
        assert client.status().degraded
        assert "Timeout" in client.status().last_error


def test_start_without_redis_uses_the_last_known_good_file(own_server: RedisServer, told: Told, tmp_path: Path) -> None:
    judge = Judge(own_server, "lkg")
    with following(own_server, judge, told, state_dir=tmp_path) as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        poll_until(client, lambda: any(tmp_path.glob("*.slodrift")))
    own_server.stop()
    with BreakerClient(own_server.url, "lkg", ["p"], state_dir=tmp_path) as client:
        assert not client.allow("n1")
        assert client.decide("n1").source == "lkg"
        assert client.status().degraded
    (file,) = tmp_path.glob("*.slodrift")
    file.write_bytes(file.read_bytes().replace(b'"OPEN"', b'"OPEM"'))
    with BreakerClient(own_server.url, "lkg", ["p"], state_dir=tmp_path) as client:
        assert client.allow("n1")
        assert client.status().file_errors == 1
    own_server.start()
    with BreakerClient(own_server.url, "other", ["p"], state_dir=tmp_path) as client:
        assert client.allow("n1")
    judge.close()


def test_folder_that_cannot_be_written_is_counted_and_stops_nothing(
    redis_server: RedisServer, judge: Judge, told: Told, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with following(redis_server, judge, told, state_dir=tmp_path / "file" / "x") as client:
        judge.write("n1")
        told.wait("n1", "OPEN")
        poll_until(client, lambda: client.status().file_errors > 0)
        judge.write()
        told.wait("n1", "CLOSED")


def test_client_of_ones_own_may_decode_responses(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    own = redis.Redis.from_url(redis_server.url, decode_responses=True, socket_timeout=1)
    with BreakerClient(own, judge.fleet, ["p"]) as client:
        client.on_change(told)
        judge.write("n1")
        told.wait("n1", "OPEN")
    assert own.ping()  # it is not ours to close
    own.close()


def test_reader_with_the_least_rights_is_enough(redis_server: RedisServer, judge: Judge, told: Told) -> None:
    admin = redis.Redis.from_url(redis_server.url)
    places = (f"%R~{{slodrift:{judge.fleet}:*", f"&{{slodrift:{judge.fleet}:*")
    rights = ("+get", "+mget", "+subscribe", "+unsubscribe", "+client", "+hello", "+ping")
    admin.execute_command("ACL", "SETUSER", "host", "reset", "on", ">pw", *places, "-@all", *rights)
    url = redis_server.url.replace("redis://", "redis://host:pw@")
    with BreakerClient(url, judge.fleet, ["p"]) as client:
        client.on_change(told)
        judge.write("n1")
        told.wait("n1", "OPEN")
        assert client.status().errors == 0
    admin.execute_command("ACL", "DELUSER", "host")
    admin.close()


def test_close_ends_the_thread(redis_server: RedisServer, judge: Judge) -> None:
    client = BreakerClient(redis_server.url, judge.fleet, ["p"])
    client.close()
    assert not client._thread.is_alive()
    client.close()
    assert client.allow("n1")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_reads_by_itself(redis_server: RedisServer, judge: Judge) -> None:
    judge.write("n1")
    program = """
        import os, sys, threading, time
        from slodrift_client import BreakerClient
        client = BreakerClient(sys.argv[1], sys.argv[2], ["p"])
        assert client.wait(20)
        child = os.fork()
        if child == 0:
            before = client.status().polls
            deadline = time.monotonic() + 20
            while client.status().polls < before + 2 and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            os._exit(0 if client.status().polls >= before + 2 and not client.allow("n1") else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), redis_server.url, judge.fleet], timeout=60, check=False
    )
    assert done.returncode == 0


def test_import_needs_redis_alone() -> None:
    program = "import sys, slodrift_client; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    foreign = {"schemas", "sinks", "streams", "detectors", "numpy", "msgspec", "pydantic", "faust", "structlog"}
    assert foreign.isdisjoint(done.stdout.split())
