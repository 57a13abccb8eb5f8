"""The ACL file on a real server: every role tries every command, and the real clients work with it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry
from slodrift_client import BreakerClient

from schemas.contract import Entry
from schemas.errors import ConfigError, SinkRejected
from schemas.redis_acl import ROLES, Role, acl_file, user_name
from schemas.redis_keys import PoolKeys
from sinks.redis_decisions import DecisionSink, connect
from sinks.redis_library import library_source, load_library
from streams.cli import main
from streams.embedded.lifeline import free_port
from streams.embedded.redis_server import find_redis_server

FLEET, POOL = "default", "llama3-70b/eu/h100"
PASSWORDS: dict[Role, str] = {role: f"{role}-password-of-the-test" for role in ROLES}
KEYS, FOREIGN = PoolKeys(FLEET, POOL), PoolKeys("other", POOL)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., Any]) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("acl")
    try:
        binary = find_redis_server()
    except ConfigError as exc:
        pytest.skip(str(exc))
    users = folder / "users.acl"
    users.write_text(acl_file(FLEET, PASSWORDS) + "user admin on >admin ~* &* +@all\n")
    number = free_port()
    command = [binary, "--port", str(number), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--aclfile", str(users)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: answers(number), "the server answers")
    yield number
    process.kill()
    process.wait()


def answers(port: int) -> bool:
    try:
        return bool(login(port, "admin", "admin").ping())
    except driver.ConnectionError:
        return False


def login(port: int, user: str | None = None, password: str | None = None) -> driver.Redis:
    # RESP3 would push subscriptions past read_response
    return driver.Redis(port=port, username=user, password=password, socket_timeout=5, protocol=2, retry=Retry(NoBackoff(), 0))


@pytest.fixture
def admin(port: int) -> Iterator[driver.Redis]:
    client = login(port, "admin", "admin")
    client.flushall()
    client.function_load(library_source(), replace=True)
    yield client
    client.close()


def url(port: int, role: Role) -> str:
    return f"redis://{user_name(role)}:{PASSWORDS[role]}@127.0.0.1:{port}/0"


J, H, S = "judge", "host", "setup"
EVERYBODY = {J, H, S}
HASH = KEYS.subject("gpu-1")
LIBRARY = "#!lua name=other\nredis.register_function('other', function() return 1 end)"
MATRIX: list[tuple[list[str], set[str]]] = [
    # what is used
    (["PING"], EVERYBODY),
    (["CLIENT", "SETNAME", "x"], EVERYBODY),
    (["CLIENT", "SETINFO", "lib-name", "x"], EVERYBODY),
    (["FCALL_RO", "slodrift_version", "0"], {J, S}),
    (["FCALL", "slodrift_assert", "3", KEYS.head, KEYS.snap, KEYS.log, "{}", "{}", KEYS.doorbell], {J}),
    (["GET", KEYS.head], {J, H}),
    (["MGET", KEYS.head, KEYS.snap], {H}),
    (["SUBSCRIBE", KEYS.doorbell], {H}),
    (["SET", KEYS.head, "x"], {J}),
    (["SET", KEYS.snap, "x"], {J}),
    (["PEXPIRE", KEYS.snap, "1000"], {J}),
    (["HSET", HASH, "state", "OPEN"], {J}),
    (["DEL", HASH], {J}),
    (["XADD", KEYS.log, "*", "a", "b"], {J}),
    (["XREVRANGE", KEYS.log, "+", "-", "COUNT", "1"], {J}),
    (["PUBLISH", KEYS.doorbell, "1"], {J}),
    (["FUNCTION", "LOAD", "REPLACE", LIBRARY], {S}),
    # the same on what is not theirs
    (["GET", FOREIGN.head], set()),
    (["GET", "anything"], set()),
    (["GET", KEYS.log], {J}),
    (["MGET", KEYS.head, FOREIGN.head], set()),
    (["SET", FOREIGN.head, "x"], set()),
    (["DEL", "anything"], set()),
    (["PUBLISH", FOREIGN.doorbell, "1"], set()),
    (["SUBSCRIBE", FOREIGN.doorbell], set()),
    (["PSUBSCRIBE", "*"], set()),
    (["FCALL", "slodrift_assert", "3", FOREIGN.head, FOREIGN.snap, FOREIGN.log, "{}", "{}", FOREIGN.doorbell], set()),
    # what nobody needs
    *(
        (words, set())
        for words in (
            ["EVAL", "return 1", "0"], ["EVAL_RO", "return 1", "0"], ["EVALSHA", "0" * 40, "0"], ["SCRIPT", "LOAD", "return 1"],
            ["FUNCTION", "DELETE", "slodrift"], ["FUNCTION", "FLUSH"], ["FUNCTION", "KILL"], ["FUNCTION", "RESTORE", "x"],
            ["CONFIG", "GET", "*"], ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "REWRITE"], ["KEYS", "*"], ["SCAN", "0"],
            ["FLUSHALL"], ["FLUSHDB"], ["SWAPDB", "0", "1"], ["RENAME", KEYS.head, KEYS.snap], ["COPY", KEYS.head, KEYS.snap],
            ["ACL", "LIST"], ["ACL", "WHOAMI"], ["ACL", "SETUSER", "slodrift-host", "allcommands"], ["ACL", "SAVE"],
            ["SHUTDOWN", "NOSAVE"], ["REPLICAOF", "NO", "ONE"], ["MONITOR"], ["SAVE"], ["BGSAVE"],
            ["CLIENT", "LIST"], ["CLIENT", "KILL", "TYPE", "normal"], ["CLIENT", "PAUSE", "1"], ["MODULE", "LIST"], ["INFO"],
            ["DUMP", KEYS.head], ["RESTORE", KEYS.head, "0", "x"], ["MIGRATE", "h", "1", KEYS.head, "0", "1"],
            ["XTRIM", KEYS.log, "MAXLEN", "0"],
            ["SETRANGE", KEYS.head, "0", "x"], ["APPEND", KEYS.head, "x"], ["EXPIRE", KEYS.head, "0"], ["UNLINK", KEYS.head],
            ["GETDEL", KEYS.head], ["GETEX", KEYS.head], ["HGETALL", HASH], ["XRANGE", KEYS.log, "-", "+"], ["MULTI"],
        )
    ),
]  # fmt: skip


def permitted(port: int, role: Role, words: list[str]) -> bool:
    client = login(port, user_name(role), PASSWORDS[role])
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError:
        pass  # it may, and said something that makes no sense
    finally:
        connection.disconnect()
        client.close()
    return True


@pytest.mark.parametrize(("words", "roles"), MATRIX, ids=[" ".join(words)[:60] for words, _ in MATRIX])
def test_matrix(port: int, admin: driver.Redis, words: list[str], roles: set[str]) -> None:
    assert {role for role in ROLES if permitted(port, role, words)} == roles
    assert admin.ping()


def test_the_default_user_and_wrong_passwords_are_refused(port: int) -> None:
    for user, password in ((None, None), ("default", ""), (user_name("judge"), PASSWORDS["host"]), ("nobody", "x")):
        with pytest.raises(AuthenticationError):
            login(port, user, password).ping()


async def test_setup_loads_judge_writes_host_reads(port: int, admin: driver.Redis, wait_until: Callable[..., Any]) -> None:
    admin.function_flush()
    setup = connect(url(port, "setup"))
    await load_library(setup)
    await setup.aclose()
    sink = DecisionSink(connect(url(port, "judge")), FLEET, load_library=False)
    await sink.setup()
    now = sink.now_ms()
    entry = Entry(
        scope="node", subject="gpu-1", state="OPEN", version=(1, 2, 3), tx="t", opened_ms=now, not_after_ms=now + 60_000
    )
    await sink.assert_state(POOL, [entry], version=(1, 2, 3), n_eligible=20, cap=2, mode="enforce")
    await sink.heartbeat(POOL)
    with BreakerClient(url(port, "host"), FLEET, [POOL]) as client:
        assert client.wait(5)
        assert not client.allow("gpu-1")
        await sink.assert_state(POOL, [], version=(1, 2, 4), n_eligible=20, cap=2, mode="enforce")
        wait_until(lambda: client.allow("gpu-1"), "the doorbell rang through the ACL", 5)
        assert client.status().errors == 0
    await sink.close()
    hijacker = DecisionSink(connect(url(port, "host")), FLEET, load_library=False)
    with pytest.raises(SinkRejected, match="may not write decisions"):
        await hijacker.assert_state(POOL, [], version=(1, 2, 5), n_eligible=20, cap=2, mode="enforce")
    await hijacker.close()


def test_the_committed_file_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["acl", "--fleet", "default"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert printed == (Path(__file__).parents[2] / "deploy/redis/users.acl").read_text()
    assert " on " not in printed


def test_passwords_are_drawn_once_kept_private_and_never_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "secrets", tmp_path / "users.acl"
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["acl", "--fleet", "default", "--passwords", str(folder), "--out", str(out)])
    drawn = {role: (folder / user_name(role)).read_text().strip() for role in ROLES}
    assert len(set(drawn.values())) == len(ROLES)
    assert min(map(len, drawn.values())) >= 32
    assert {(folder / user_name(role)).stat().st_mode & 0o777 for role in ROLES} == {0o600}
    assert out.read_text() == acl_file("default", drawn)
    said = capsys.readouterr()
    assert not any(word in said.out + said.err + out.read_text() for word in drawn.values())


def test_short_passwords_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / user_name("host")).write_text("hunter2\n")
    with pytest.raises(SystemExit) as left:
        main(["acl", "--fleet", "default", "--passwords", str(tmp_path)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "at least 16" in said
    assert "hunter2" not in said
