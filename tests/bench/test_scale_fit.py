"""The fit of the growth benchmark finds what it was given."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scale import CHECK, FIT, FORMS, fit
from bench.scale_live import counts_of

TRUE = {"frames": 90e-6, "requests": 0.4e-6, "samples": 0.1e-6, "pool_ticks": 3e-3, "node_ticks": 20e-6}


def made(noise: float) -> list[dict[str, float]]:
    rng = np.random.default_rng(4)
    return [
        {"cpu_s": sum(f * getattr(counts_of(s), n) for n, f in TRUE.items()) * (1.0 + noise * rng.standard_normal())} for s in FIT
    ]


def test_coefficients_are_found_and_the_residual_is_that_of_the_noise() -> None:
    found, residual = fit("cpu_s", FIT, made(0.0))
    assert found == pytest.approx(TRUE, rel=1e-6)
    assert residual < 1e-6
    found, residual = fit("cpu_s", FIT, made(0.05))
    assert found["frames"] == pytest.approx(TRUE["frames"], rel=0.3)
    assert residual < 0.2


def test_sizes_tell_all_counts_apart() -> None:
    for names in FORMS.values():
        design = np.array([[getattr(counts_of(size), name) for name in names] for size in FIT])
        assert np.linalg.matrix_rank(design / design.max(axis=0), tol=1e-3) == len(names)


def test_sizes_of_the_check_are_not_those_of_the_fit() -> None:
    assert len(CHECK) == 3
    assert not set(CHECK) & set(FIT)
