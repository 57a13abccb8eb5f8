"""What a mutant of a guard is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODEL", "Mutant", "m"]

MODEL = "tests/model/test_protocol_model.py"


@dataclass(frozen=True)
class Mutant:
    """One guard taken away.

    Attributes:
        name: Short, unique.
        guard: What is gone.
        file, old, new: The edit.
        tests: Files; the first that fails kills it.
    """

    name: str
    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def m(name: str, guard: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, guard, file, old, new, tests)
