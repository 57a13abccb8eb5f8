"""Guards of the decision path, each with the smallest edit that takes it away, and the tests that must notice.

`old` occurs exactly once in the file; a guard that is rewritten takes its mutant along.
"""

from __future__ import annotations

import mutants_detection
import mutants_host
import mutants_judge
import mutants_scopes
from mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = mutants_host.MUTANTS + mutants_judge.MUTANTS + mutants_scopes.MUTANTS + mutants_detection.MUTANTS
