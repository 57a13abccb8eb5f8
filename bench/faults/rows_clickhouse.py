"""Faults of ClickHouse: away, slow, killed in the middle of inserts, answers lost, too many parts, disk full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.faults.case import Case, play
from bench.faults.registry import fault
from bench.faults.site import Failed, Site, wait_for
from sinks.clickhouse import open_client

__all__ = ["small_disk"]

GROUP = "clickhouse"
_DISK = "192m"
_LONGEST_PAUSE_S = 35.0
"""The archive tries again within 30 s."""


@contextlib.contextmanager
def small_disk() -> Iterator[dict[str, Any]]:
    """Options of the group's stack: the engine's folder is on a file system of its own, of 192 MiB."""
    with tempfile.TemporaryDirectory(prefix="slodrift-disk-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", folder], capture_output=True, check=False
        )
        try:
            yield {"clickhouse_folder": Path(folder) / "clickhouse"}
        finally:
            if mounted.returncode == 0:
                subprocess.run(["umount", "-l", folder], check=False)


def _command(site: Site, *statements: str) -> None:
    client = open_client(f"clickhouse://default@127.0.0.1:{site.clickhouse.port}/slodrift")
    try:
        for statement in statements:
            client.command(statement)
    finally:
        client.close()


def _decided_meanwhile(site: Site, case: Case) -> int:
    decisions, _ = site.tail.decisions([case.pool])
    case.figures["decided_meanwhile"] = len(decisions)
    return len(decisions)


@fault(GROUP, "ClickHouse down", "SIGKILL, away for 7 s", "decisions do not wait for it; all rows afterwards", quick=True)
def down(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    site.clickhouse.kill()
    play(site, [case], 6.0)
    wait_for(lambda: _decided_meanwhile(site, case) == 3, "all decisions without ClickHouse", 5)
    site.clickhouse.start()
    return case


@fault(GROUP, "ClickHouse slow", "every answer 1.5 s late for 10 s", "decisions do not wait for it")
def slow(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    site.clickhouse_proxy.delay_s = 1.5
    play(site, [case], 6.0)
    wait_for(lambda: _decided_meanwhile(site, case) == 3, "all decisions", 5)
    time.sleep(4.0)
    site.clickhouse_proxy.heal()
    return case


@fault(GROUP, "ClickHouse killed mid-insert", "SIGKILL x4 at random under load", "row for row")
def killed(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)

    def kill() -> None:
        site.clickhouse.kill()
        site.clickhouse.start()

    play(site, [case], 10.0, [(at, kill) for at in (1.37, 3.61, 5.83, 8.29)])
    return case


@fault(
    GROUP,
    "answers of ClickHouse lost",
    "30 answers swallowed with their connections",
    "retried with the same token, written once",
)
def answers_lost(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    before = site.clickhouse_proxy.lost

    def lose() -> None:
        site.clickhouse_proxy.lose_answers = 30

    play(site, [case], 8.0, [(1.0, lose)])
    while left := site.clickhouse_proxy.lose_answers:  # the archive backs off, by chance up to half a minute
        wait_for(lambda left=left: site.clickhouse_proxy.lose_answers < left, "one more answer lost", _LONGEST_PAUSE_S)
    case.figures["answers_lost"] = site.clickhouse_proxy.lost - before
    return case


@fault(GROUP, "connection to ClickHouse half-open", "nothing passes for 5 s, then it is cut", "nothing lost, nothing twice")
def half_open(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)

    def begin() -> None:
        site.clickhouse_proxy.hole = True

    def end() -> None:
        site.clickhouse_proxy.heal()
        site.clickhouse_proxy.cut()

    play(site, [case], 8.0, [(1.5, begin), (6.5, end)])
    return case


@fault(GROUP, "too many parts", "parts_to_throw_insert 1 and merges stopped, 6 s (error 252)", "backs off, drops nothing")
def too_many_parts(site: Site, pool: str) -> Case:
    case, said = Case.plain(site, pool), len(site.archive.said)
    _command(
        site,
        "SYSTEM STOP MERGES windows",
        "ALTER TABLE windows MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1",
    )
    try:
        play(site, [case], 6.0)
        wait_for(lambda: "too many parts" in site.archive.said[said:].lower(), "error 252 in the archive", 10)
    finally:
        _command(
            site, "ALTER TABLE windows RESET SETTING parts_to_throw_insert, parts_to_delay_insert", "SYSTEM START MERGES windows"
        )
    return case


@fault(
    GROUP,
    "disk of ClickHouse full",
    "file system of 192 MiB filled to the last block, 8 s (error 243)",
    "all rows when there is room",
)
def disk_full(site: Site, pool: str) -> Case:
    case = Case.plain(site, pool)
    disk = site.clickhouse.folder.parent
    if not os.path.ismount(disk):
        raise Failed("no file system could be mounted here (needs root): the fault cannot be injected")
    ballast, said = disk / "ballast", len(site.archive.said)

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    try:
        play(site, [case], 8.0, [(1.0, fill), (4.0, fill)])
        wait_for(lambda: "ClickHouse does not take" in site.archive.said[said:], "the archive meets the full disk", 10)
        case.figures["error"] = next(
            (w for w in ("Code: 243", "No space left", "NOT_ENOUGH_SPACE") if w in site.archive.said[said:]), "?"
        )
    finally:
        ballast.unlink(missing_ok=True)
    return case
