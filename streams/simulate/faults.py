"""Faults by name: what each does to a node, and the text form `NAME[=STRENGTH]@NODE:FROM-TO`.

To add one: a line in `FAULTS`. The labels file that a simulation writes says which were active where and when; detection never
sees it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import ConfigError

__all__ = ["FAULTS", "Fault", "FaultKind", "parse_duration_s", "parse_fault"]

Curve = Callable[[float, float], float]
"""(strength, progress in 0..1) to a factor."""


def _constant(strength: float, progress: float) -> float:
    return strength


def _ramp(strength: float, progress: float) -> float:
    return 1.0 + (strength - 1.0) * progress


@dataclass(frozen=True)
class FaultKind:
    """What a fault does; unset effects do nothing.

    Attributes:
        about: One sentence for `--list-faults`.
        strength: Default strength.
        step: Factor on decode steps.
        prefill: Factor on prefill.
        tail_ratio: Share of requests whose latencies are multiplied by the strength outside the batch.
        outcome: Outcome that a share `strength` of the requests gets.
        hang: Nothing is generated while it lasts; running requests stay.
        down: The process is gone: connections are refused, in-flight requests are lost, a new boot follows.
        silent: The node serves, and its telemetry is lost.
        kv: The usable KV cache is divided by the strength.
        rate, prompt: Factor on the arrival rate, on prompt lengths (of the whole pool).
        deploy: A deploy event for the pool marks the start.
        xid: NVIDIA XID on a GPU event at the start.
        thermal: GPUs throttle: the clock falls by the strength.
        pcie: The PCIe link is busy with something else.
        adapter: Only requests with this adapter suffer (`*`: with any); their latencies are multiplied by the strength.
        tenant: All requests of this tenant fail.
        session: One session sends a share `strength` of the requests, and all of them fail.
    """

    about: str
    strength: float = 1.0
    step: Curve | None = None
    prefill: Curve | None = None
    tail_ratio: float = 0.0
    outcome: str | None = None
    hang: bool = False
    down: bool = False
    silent: bool = False
    kv: bool = False
    rate: bool = False
    prompt: bool = False
    deploy: bool = False
    xid: int | None = None
    thermal: bool = False
    pcie: bool = False
    adapter: str | None = None
    tenant: str | None = None
    session: bool = False


FAULTS: dict[str, FaultKind] = {
    "slow_node": FaultKind("the node computes slower by the strength", 2.5, step=_constant, prefill=_constant),
    "fleet_slow": FaultKind("the same on every node at once (use node *)", 2.0, step=_constant, prefill=_constant),
    "slow_prefill": FaultKind("only prefill is slower", 4.0, prefill=_constant),
    "warm_drift": FaultKind("the node gets slower little by little", 2.0, step=_ramp, prefill=_ramp),
    "tail": FaultKind("2 % of the requests take longer by the strength", 8.0, tail_ratio=0.02),
    "errors": FaultKind("a share of the requests fails at once", 0.3, outcome="server_error"),
    "midstream_errors": FaultKind("a share of the requests fails after the first token", 0.3, outcome="midstream_error"),
    "empty_answers": FaultKind("a share of the requests gets HTTP 200 without a token", 0.3, outcome="empty"),
    "client_errors": FaultKind("a share of the requests is malformed: not the node's fault", 0.5, outcome="client_error"),
    "stall": FaultKind("the engine hangs with requests running", hang=True),
    "silent": FaultKind("telemetry of the node is lost, it goes on serving", silent=True),
    "crash": FaultKind("the process is gone and comes back with a new boot id", down=True),
    "gpu_xid": FaultKind("a GPU falls off the bus (XID 79) and the engine hangs", hang=True, xid=79),
    "thermal": FaultKind("GPUs throttle by the strength", 1.6, step=_constant, prefill=_constant, thermal=True),
    "pcie_contention": FaultKind("the PCIe link is busy: prefill suffers", 3.0, prefill=_constant, pcie=True),
    "kv_pressure": FaultKind("the KV cache shrinks by the strength, requests queue", 8.0, kv=True),
    "surge": FaultKind("arrivals grow by the strength (use node *)", 2.0, rate=True),
    "mix_shift": FaultKind("prompts get longer by the strength (use node *)", 4.0, prompt=True),
    "slow_adapter": FaultKind(
        "requests with the adapter lora-a take longer by the strength (use node *)", 12.0, adapter="lora-a"
    ),
    "adapter_switch": FaultKind("requests with any adapter take longer by the strength (use node *)", 12.0, adapter="*"),
    "tenant_errors": FaultKind("all requests of the tenant t-1 fail (use node *)", tenant="t-1"),
    "poison_session": FaultKind("one session sends a share of the requests, all of them fail (use node *)", 0.05, session=True),
    "deploy_regression": FaultKind("a deploy makes every node slower (use node *)", 1.6, step=_constant, deploy=True),
}


@dataclass(frozen=True)
class Fault:
    """One injected fault, active in [from_s, to_s), seconds since the start of the simulation. Node `*` is all."""

    name: str
    node: str
    from_s: float
    to_s: float
    strength: float

    @property
    def kind(self) -> FaultKind:
        """The effects."""
        return FAULTS[self.name]

    def hits(self, node: str) -> bool:
        """Does it concern `node`?"""
        return self.node in ("*", node)

    def active(self, t_s: float) -> bool:
        """Is it active at `t_s`?"""
        return self.from_s <= t_s < self.to_s

    def progress(self, t_s: float) -> float:
        """How much of it has passed, 0 to 1."""
        length_s = self.to_s - self.from_s
        return 1.0 if math.isinf(length_s) else min(1.0, max(0.0, (t_s - self.from_s) / length_s))


_PATTERN = re.compile(r"(?P<name>\w+)(=(?P<strength>[\d.]+))?@(?P<node>[^:@]+):(?P<start>[\w.]+)-(?P<end>[\w.]*)")
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """`90`, `90s`, `1.5m` or `2h` in seconds.

    Raises:
        ConfigError: If it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise ConfigError(f"duration {text!r} is not understood: write 90s, 1.5m or 2h")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_fault(text: str) -> Fault:
    """Read `NAME[=STRENGTH]@NODE:FROM-TO`, for example `slow_node=3@gpu-03:20m-25m`; without TO it lasts to the end.

    Raises:
        ConfigError: With what is wrong and, for a misspelt name, the nearest one.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(f"fault {text!r} is not understood: write NAME[=STRENGTH]@NODE:FROM-TO, e.g. slow_node@gpu-03:20m-25m")
    name = match["name"]
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FAULTS)}"
        raise ConfigError(f"fault {text!r}: there is no fault {name!r}; {hint}")
    start_s = parse_duration_s(match["start"])
    end_s = parse_duration_s(match["end"]) if match["end"] else math.inf
    if end_s <= start_s:
        raise ConfigError(f"fault {text!r} ends before it starts: write the earlier time first")
    try:
        strength = float(match["strength"]) if match["strength"] else FAULTS[name].strength
    except ValueError:
        raise ConfigError(f"fault {text!r}: strength {match['strength']!r} is not a number") from None
    return Fault(name, match["node"], start_s, end_s, strength)
