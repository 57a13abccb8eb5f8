"""Serving hosts in processes of their own, without proxies: real clients that write down when they learn what."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from bench.faults.hosts import LOOK_S, Host, Sighting
from bench.faults.site import Failed, Site

__all__ = ["HostLog", "HostProcesses"]

_PROCESSES = 10
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class HostLog:
    """What one host saw, see `Host`."""

    name: str
    seen: list[Sighting]
    reached: list[tuple[float, str, tuple[int, int, int]]]
    faults: list[str]


class HostProcesses:
    """`n` hosts that follow some pools of a site, while the `with` block runs.

    Args:
        site: Where their Redis is.
        pools: What they follow.
        n: How many, divided among ten processes.
    """

    def __init__(self, site: Site, pools: Sequence[str], n: int) -> None:
        self._site, self._pools, self._n = site, list(pools), n
        self._children: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> HostProcesses:
        context = multiprocessing.get_context("spawn")
        names = [f"far-{i:02d}" for i in range(self._n)]
        for mine in filter(None, (names[i::_PROCESSES] for i in range(_PROCESSES))):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_live,
                args=(theirs, self._site.redis_port, self._pools, self._site.folder / "far", mine, names, self._site.public_key),
                daemon=True,
            )
            child.start()
            self._children.append((child, ours))
        for _, pipe in self._children:
            _answer(pipe)
        return self

    def stop(self) -> list[HostLog]:
        """End them; what each saw.

        Raises:
            Failed: One does not answer, or saw what no host may see.
        """
        for _, pipe in self._children:
            pipe.send("stop")
        logs = [log for _, pipe in self._children for log in _answer(pipe)]
        if faults := [fault for log in logs for fault in log.faults[:3]]:
            raise Failed(f"hosts saw {faults[:10]}")
        return logs

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        for child, pipe in self._children:
            pipe.close()
            child.join(10)
            if child.is_alive():
                child.kill()


def _answer(pipe: Connection) -> list[HostLog]:
    with contextlib.suppress(EOFError):
        if pipe.poll(_PATIENCE_S):
            answer: list[HostLog] = pipe.recv()
            return answer
    raise Failed("a process of hosts does not answer")


def _live(
    pipe: Connection, port: int, pools: list[str], folder: Path, mine: list[str], names: list[str], public_key: bytes | None
) -> None:
    hosts = [Host(name, port, pools, folder / name, public_key, names) for name in mine]
    try:
        for host in hosts:
            host.start()
        pipe.send([])
        while not pipe.poll(LOOK_S):
            for host in hosts:
                host.look()
        pipe.send([HostLog(host.name, list(host.seen), list(host.reached), list(host.faults)) for host in hosts])
    except (EOFError, OSError):
        return  # whoever started us is gone
    finally:
        for host in hosts:
            host.stop()
