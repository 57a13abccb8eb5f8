"""`slodrift override`: an operator takes a node, a session bucket, a request class or a pool's load away, gives it back, or keeps
automation from it.
"""

from __future__ import annotations

import getpass
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
import typer

from schemas.cells import cells_of
from schemas.errors import ConfigError
from schemas.override import override_fault, sign_override
from schemas.policy_file import load_policy
from schemas.results import Decision
from schemas.scopes import subject_fault
from schemas.signing import load_signer
from schemas.telemetry import OverrideEvent
from streams.explain import explain
from streams.framer_cells import cell_names
from streams.override import order_override
from streams.settings import load_settings

__all__ = ["run"]

State = Literal["FORCED_OPEN", "DISABLED", "CLOSED"]
_STATES = ("FORCED_OPEN", "DISABLED", "CLOSED")
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def run(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    subject: Annotated[
        str, typer.Argument(help="A node, or session:N, request:prompt:TOKENS, request:adapter:NAME, request:tenant:NAME, pool:.")
    ],
    state: Annotated[
        str,
        typer.Option(
            help="FORCED_OPEN: no request to it (or its scope's action). DISABLED: automation leaves it alone. CLOSED: now, once."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; part of the decision and of the audit.")],
    duration: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="90s, 30m, 2h; at most 4h.")] = None,
    operator: Annotated[str | None, typer.Option(help="Who orders it [the user of this process].")] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="Private Ed25519 key of the operator.")] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the decision; it takes a tick and the lateness.")
    ] = 60.0,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy file, which says what pools are split into cells [default: SLODRIFT_POLICY_FILE]."),
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka addresses [SLODRIFT_KAFKA_BOOTSTRAP].")] = None,
) -> None:
    """Order what the breaker of a subject is to be, for a time. Exit code 1 when no decision answers within --wait.

    In a pool that is split into cells a node's order goes to its cell; one about a session, a class or pool: goes to each cell.
    """
    if state not in _STATES:
        raise ConfigError(f"--state {state}: write one of {', '.join(_STATES)}")
    if (state == "CLOSED") is not (duration is None):
        raise ConfigError(
            "--state CLOSED is done once and takes no --for (DISABLED keeps a breaker from opening)"
            if duration is not None
            else f"--state {state} needs --for, for example --for 2h: an override ends by itself"
        )
    now_s = round(time.time(), 3)
    event = OverrideEvent(
        ts=now_s,
        pool=pool,
        subject=subject,
        state=cast(State, state),
        reason=reason,
        operator=operator or getpass.getuser(),
        id=uuid.uuid4().hex,
        start=now_s,
        end=now_s + (0.0 if duration is None else _seconds(duration)),
    )
    if fault := override_fault(event) or subject_fault(subject):
        raise ConfigError(fault)
    settings = load_settings(kafka_bootstrap=bootstrap)
    cells = cells_of(pool, load_policy(policy or settings.policy_file).cells_of(pool))
    events = [msgspec.structs.replace(event, pool=name) for name in cell_names(event, cells)]
    if key is not None:
        signer = load_signer(key)
        events = [sign_override(event, signer) for event in events]
    with ThreadPoolExecutor(len(events)) as senders:
        decisions = list(senders.map(lambda event: order_override(settings, event, wait), events))
    for event, decision in zip(events, decisions, strict=True):
        _say(event, decision, wait)
    if None in decisions:
        raise typer.Exit(1)


def _say(event: OverrideEvent, decision: Decision | None, wait: float) -> None:
    if decision is None:
        typer.echo(
            f"no decision answered within {wait:g} s: is {event.subject} of {event.pool}, is it in another state than "
            f"{event.state}, does a judge run, and does its policy take this key? Its counts of rejected events say which; "
            "the order ends by itself",
            err=True,
        )
        return
    typer.echo("\n".join(explain(decision)))
    if decision.evidence.get("over_cap"):
        typer.echo("more nodes are away than the caps allow automation; hosts refuse what passes their own caps")
    if decision.mode != "enforce":
        typer.echo(f"the pool is in mode {decision.mode}: hosts do not obey")


def _seconds(word: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(s|m|h)", word)
    if found is None:
        raise ConfigError(f"--for {word}: write a number and a unit, for example 90s, 30m or 2h")
    return float(found[1]) * _UNITS_S[found[2]]
