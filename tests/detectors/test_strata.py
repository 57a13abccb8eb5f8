import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.strata import stratum_count, stratum_of, uncached_tokens
from schemas.batch import UNKNOWN_TOKENS

U32 = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(U32, U32), min_size=1), st.integers(1, 300))
def test_strata_are_bounded_and_a_function_of_the_row(rows, most):
    tokens, adapters = (np.array(x, np.uint32) for x in zip(*rows, strict=True))
    strata = stratum_of(tokens, adapters, most)
    assert stratum_count(most) <= most
    assert strata.max() < stratum_count(most)
    alone = [stratum_of(tokens[i : i + 1], adapters[i : i + 1], most)[0] for i in range(len(rows))]
    assert strata.tolist() == alone


def test_longer_prompts_have_higher_strata_and_unknown_ones_their_own():
    tokens = np.array([UNKNOWN_TOKENS, 0, 255, 256, 511, 512, 4095, 4096, 100_000], np.uint32)
    assert stratum_of(tokens, np.zeros(9, np.uint32), 8).tolist() == [0, 1, 1, 2, 2, 3, 5, 6, 7]


def test_requests_with_an_adapter_are_apart_when_there_is_room():
    tokens, adapters = np.full(2, 300, np.uint32), np.array([0, 99], np.uint32)
    assert len(set(stratum_of(tokens, adapters, 16).tolist())) == 2
    assert len(set(stratum_of(tokens, adapters, 8).tolist())) == 1


@pytest.mark.parametrize(
    ("prompt", "cached", "left"),
    [(100, 30, 70), (100, 200, 0), (100, UNKNOWN_TOKENS, 100), (UNKNOWN_TOKENS, 10, UNKNOWN_TOKENS)],
)
def test_cached_tokens_are_not_computed(prompt, cached, left):
    assert uncached_tokens(np.array([prompt], np.uint32), np.array([cached], np.uint32))[0] == left
