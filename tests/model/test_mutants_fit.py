"""Every mutant of a guard still fits the code; `make mutants` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutants import ROOT, fits
from mutants_table import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_edit_fits_once_and_is_valid(mutant: Mutant) -> None:
    assert fits(mutant), f"{mutant.old!r} is not in {mutant.file} exactly once: move the mutant with its guard"
    if mutant.file.endswith(".py"):
        ast.parse((ROOT / mutant.file).read_text().replace(mutant.old, mutant.new))
    assert all(Path(ROOT, test).is_file() for test in mutant.tests)


def test_names_are_unique_and_there_are_enough() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 20
