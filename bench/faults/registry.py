"""The faults by group; a group shares one start of the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.faults.case import Case
from bench.faults.site import Site

__all__ = ["FAULTS", "Fault", "fault"]


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        name: What breaks.
        group: Which start of the stack it belongs to.
        injected: How, in numbers.
        expected: On top of the closing checks.
        run: Injects, heals, and checks what the row promises beyond the closing checks; returns its case.
        quick: Part of the short version.
        together: Only makes messages; the whole group is played at once.
        check: For `together`: what the row promises, after the closing checks.
        alone: Asserts a latency or a memory of its own: no other row runs meanwhile.
    """

    name: str
    group: str
    injected: str
    expected: str
    run: Callable[[Site, str], Case]
    quick: bool = False
    together: bool = False
    check: Callable[[Site, Case], Any] | None = None
    alone: bool = False

    @property
    def pool(self) -> str:
        """Name of its pool."""
        return f"{self.group}/{self.name.replace(' ', '-').replace(',', '')}"


FAULTS: list[Fault] = []


def fault(
    group: str,
    name: str,
    injected: str,
    expected: str,
    *,
    quick: bool = False,
    together: bool = False,
    check: Callable[[Site, Case], Any] | None = None,
    alone: bool = False,
) -> Callable[[Callable[[Site, str], Case]], Callable[[Site, str], Case]]:
    """Decorator: register a row."""

    def add(run: Callable[[Site, str], Case]) -> Callable[[Site, str], Case]:
        FAULTS.append(Fault(name, group, injected, expected, run, quick, together, check, alone))
        return run

    return add
