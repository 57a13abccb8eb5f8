"""One request against the breakers: may it go where it is meant to, and what to tell whoever asks.

Shared by the middleware and the HTTP service. It answers from memory. A half-open subject is tried with a probe, as the decision
plans it; whoever sees the end of the request gives the lease back then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slodrift_client.answers import Decision
from slodrift_client.gate import Gate
from slodrift_client.probes import Lease

__all__ = ["MAX_SUBJECTS", "PREFIX", "Answer", "Leases", "check", "split_subjects"]

PREFIX = "x-slodrift-"
MAX_SUBJECTS = 16
"""Subjects of one request that are looked at; a request is covered by a handful of scopes."""
_MAX_NAME = 256


class Leases:
    """Probes that were granted for one request."""

    __slots__ = ("_leases",)

    def __init__(self) -> None:
        self._leases: list[Lease] = []

    def __bool__(self) -> bool:
        return bool(self._leases)

    def add(self, lease: Lease) -> None:
        """Keep one until `release`."""
        self._leases.append(lease)

    def release(self) -> None:
        """The request is over, or does not go there."""
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said about one request.

    Attributes:
        allowed: It may go there.
        probe: It is a trial of a half-open subject: mark it as `probe` in its telemetry.
        decision: Of the subject that refuses it, else of the first that is not closed, else of the first; None without any.
        headers: Names in lower case and values of visible ASCII.
        leases: Give them back when the request ends.
        retry: It was refused and may be tried at its fallback: there is one, and the retry budget allows it.
    """

    allowed: bool
    probe: bool
    decision: Decision | None
    headers: tuple[tuple[str, str], ...]
    leases: Leases
    retry: bool = False


def check(
    gate: Gate,
    subjects: Iterable[str],
    pool: str | None,
    rng: random.Random,
    *,
    key: str | None = None,
    hopped: bool = False,
    elsewhere: bool = False,
) -> Answer:
    """Whether a request that all of `subjects` cover may go. Without subjects, and about unknown ones, it may.

    Args:
        gate: Any client.
        subjects: Node, session bucket, request class: whatever covers the request.
        pool: Needed where the client follows several.
        rng: Spreads Retry-After.
        key: Of the request or its session; decides whether it is shed.
        hopped: It was refused somewhere already and this is its fallback: there is no second one.
        elsewhere: The caller has a fallback of its own.
    """
    leases = Leases()
    told: Decision | None = None
    profile: str | None = None
    subjects = list(subjects)
    pool = gate.pool_for(pool, subjects)
    gate.asked(pool)
    for subject in subjects:
        allowed = gate.passes(subject, pool, key)
        decision = gate.decide(subject, pool)
        if hopped and decision.fallback is not None:
            decision = replace(decision, fallback=None)
        if not allowed:
            lease = gate.probe(subject, pool)
            if not lease and gate.may_refuse(subject, pool):
                leases.release()
                decision = replace(decision, allowed=False)
                retry = not hopped and (elsewhere or decision.fallback is not None) and gate.may_retry(pool)
                if not retry and decision.fallback is not None:
                    decision = replace(decision, fallback=None)
                retry_s = rng.randint(1, 5)  # spread, so that those who were refused do not come back together
                headers = (*_headers(decision), ("retry-after", str(retry_s)))
                return Answer(False, False, decision, headers, leases, retry)
            if lease:
                leases.add(lease)
            allowed = True
        if allowed is not decision.allowed:
            decision = replace(decision, allowed=allowed)
        profile = profile or decision.profile
        if told is None or (told.state == "CLOSED" and decision.state != "CLOSED"):
            told = decision
    headers = () if told is None else _headers(told)
    if profile is not None:
        headers = (*headers, (f"{PREFIX}profile", _visible(profile)))
    if leases:
        headers = (*headers, (f"{PREFIX}probe", "true"), (f"{PREFIX}probe-host", _visible(gate.host)))
    return Answer(True, bool(leases), told, headers, leases)


def split_subjects(values: Iterable[str]) -> list[str]:
    """Subjects of header lines, each a list with commas."""
    names = (name.strip() for value in values for name in value.split(","))
    return [name for name in names if name and len(name) <= _MAX_NAME][:MAX_SUBJECTS]


def _headers(decision: Decision) -> tuple[tuple[str, str], ...]:
    fields: list[tuple[str, str]] = [("state", decision.state), ("source", decision.source), ("mode", decision.mode or "")]
    if decision.version is not None:
        fields += [
            ("scope", decision.scope),
            ("subject", decision.subject),
            ("version", "-".join(map(str, decision.version))),
            ("action", decision.action),
            ("fallback", decision.fallback or ""),
        ]
    return tuple((PREFIX + name, _visible(value)) for name, value in fields if value)


def _visible(value: str) -> str:
    """A header holds neither line ends nor letters beyond ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in value)
