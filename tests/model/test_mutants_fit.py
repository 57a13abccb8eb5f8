"""Every mutant of a guard still fits the code; `make mutants` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutant import MODEL
from mutants import ROOT, fits
from mutants_table import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_edit_fits_once_and_is_valid(mutant: Mutant) -> None:
    assert fits(mutant), f"{mutant.old!r} is not in {mutant.file} exactly once: move the mutant with its guard"
    if mutant.file.endswith(".py"):
        ast.parse((ROOT / mutant.file).read_text().replace(mutant.old, mutant.new))
    assert all(Path(ROOT, test).is_file() for test in mutant.tests)


def test_names_are_unique_and_the_documentation_counts_them() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert f"takes {len(MUTANTS)} guards away" in (ROOT / "docs/reliability.md").read_text()


def test_none_is_left_to_chance() -> None:
    """The model draws its histories and takes long: a small test must notice each of them first."""
    assert [m.name for m in MUTANTS if m.tests[0] == MODEL] == []
