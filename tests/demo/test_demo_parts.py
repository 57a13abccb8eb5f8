"""Parts of the demo: the host that obeys, the live fleet, the narrator, and a story that does not happen."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from slodrift_client import BreakerClient

from schemas.telemetry import Event, RequestEvent
from streams.cli import main
from streams.demo.host import HostGate
from streams.demo.narrator import Narrator
from streams.demo.processes import Command, ProcessEnded
from streams.demo.run import DemoSpec, perform
from streams.demo.story import Deadlines
from streams.demo.traffic import LiveFleet
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.router import Router
from streams.simulate.workload import PoissonWorkload

POOL = "chat/eu/h100"


def ended(node: str, *, probe: bool) -> RequestEvent:
    return RequestEvent(ts=0.0, pool=POOL, node=node, outcome="ok", probe=probe)


def test_host_sends_probes_one_at_a_time() -> None:
    client = BreakerClient.offline({"gpu-01": "OPEN", "gpu-02": "HALF_OPEN"}, pool=POOL)
    gate = HostGate(client, POOL)
    assert gate("gpu-00") == "allow"
    assert gate("gpu-01") == "deny"
    assert gate("gpu-02") == "probe"
    assert gate("gpu-02") == "deny"
    assert gate.probes == 1
    assert client._slots.in_flight(client._clock()) == 1
    gate.ended([ended("gpu-02", probe=False), ended("gpu-00", probe=True)])
    assert client._slots.in_flight(client._clock()) == 1
    gate.ended([ended("gpu-02", probe=True)])
    assert client._slots.in_flight(client._clock()) == 0


class Kept:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, events: list[Event]) -> None:
        self.events += events


def small_fleet() -> Fleet:
    arrivals, rng = np.random.default_rng(1).spawn(2)
    return Fleet(FleetSpec(POOL, ("a", "b")), PoissonWorkload(200.0, arrivals), rng, start_s=0.0, router=Router("round_robin"))


def test_live_fleet_sends_what_happens_now(wait_until: Callable[..., Any]) -> None:
    producer, heard = Kept(), threading.Event()
    with LiveFleet(small_fleet(), producer, lambda events: heard.set() if events else None) as live:  # type: ignore[arg-type]
        fault = live.inject("errors", "b", 1.0)
        wait_until(lambda: any(isinstance(e, RequestEvent) and e.outcome == "server_error" for e in producer.events), "an error")
        live.remove(fault)
        wait_until(lambda: sum(live.sent("b", 1.0)) > 20, "traffic on both nodes")
        live.check()
    assert heard.is_set()
    assert {e.node for e in producer.events if isinstance(e, RequestEvent) and e.outcome == "server_error"} == {"b"}


def test_what_kills_the_fleet_is_told(wait_until: Callable[..., Any]) -> None:
    class Broken:
        def send(self, events: list[Event]) -> None:
            raise OSError("the broker burnt down")

    def died() -> bool:
        try:
            live.check()
        except OSError:
            return True
        return False

    with LiveFleet(small_fleet(), Broken(), lambda events: None) as live:  # type: ignore[arg-type]
        wait_until(died, "the error")


def test_narrator_is_plain_without_a_terminal() -> None:
    out = io.StringIO()
    narrator = Narrator(Console(file=out, highlight=False, soft_wrap=True))
    narrator.say("OPEN", "gpu-01: [because] of x")
    narrator.table("rows", [{"a": 1, "b": "x"}, {"a": 2, "b": None}])
    narrator.table("empty", [])
    text = out.getvalue()
    assert "OPEN       gpu-01: [because] of x" in text
    assert "\x1b" not in text
    assert "no rows" in text


@pytest.mark.embedded
def test_a_step_that_does_not_happen_is_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    spec = DemoSpec(nodes=4, rps=8.0, deadlines=Deadlines(learn_s=0.05))
    assert not perform(spec, Narrator(Console(file=out, highlight=False, soft_wrap=True)))
    assert out.getvalue().splitlines()[-1].split(maxsplit=2)[2] == "failed     a first window did not happen within 0.05 s"


def test_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", "--fault", "gremlin"])
    assert end.value.code == 2
    assert "there is no fault 'gremlin'" in capsys.readouterr().err


def test_a_worker_that_ends_is_the_reason(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    def ended_with() -> str:
        try:
            command.check()
        except ProcessEnded as exc:
            return str(exc)
        return ""

    with Command(["worker", "nobody"], {}, tmp_path / "log") as command:
        said = wait_until(ended_with, "the end of the worker", 60.0)
    assert (
        said
        == "slodrift worker nobody ended with code 2: slodrift: worker nobody: there is no such role, say judge, archive or all"
    )
