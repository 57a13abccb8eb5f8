"""Request strata: which requests may be compared with which.

A stratum is (length of the prompt that was not found in the prefix cache) x (adapter class). Both are fixed functions of
one row, so strata depend neither on arrival order nor on the mix, and their number is bounded. Within a stratum the trend
of latency with length is taken out by `detectors.expected`; the stratum then only has to absorb what an affine trend
leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schemas.batch import UNKNOWN_TOKENS

__all__ = ["stratum_count", "stratum_of", "uncached_tokens"]

_LENGTHS = 8
_FIRST_OCTAVE = 8  # prompts shorter than 2**8 tokens share a bin


def _split(max_strata: int) -> tuple[int, int]:
    """(length bins, adapter classes) whose product is at most `max_strata`."""
    if max_strata >= _LENGTHS:
        return _LENGTHS, min(max_strata // _LENGTHS, 256 // _LENGTHS)
    return max(max_strata, 1), 1


def stratum_count(max_strata: int) -> int:
    """Strata in use under the bound `max_strata`, 1 to 256."""
    lengths, classes = _split(max_strata)
    return lengths * classes


def uncached_tokens(prompt_tokens: NDArray[np.uint32], cached_tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Prompt tokens that had to be computed, uint32 (n,); UNKNOWN_TOKENS where the prompt length is unknown.

    An unknown cache hit counts as none; a hit longer than the prompt as the whole prompt.
    """
    if np.minimum.reduce(cached_tokens, initial=UNKNOWN_TOKENS) == UNKNOWN_TOKENS:  # no hit is known
        return prompt_tokens
    cached = np.where(cached_tokens == UNKNOWN_TOKENS, np.uint32(0), cached_tokens)
    left = prompt_tokens - np.minimum(cached, prompt_tokens)
    return np.where(prompt_tokens == UNKNOWN_TOKENS, UNKNOWN_TOKENS, left)


def stratum_of(tokens: NDArray[np.uint32], adapter_key: NDArray[np.uint32], max_strata: int) -> NDArray[np.uint8]:
    """Stratum of each row, uint8 (n,).

    Length bins: 0 unknown, then below 256 tokens, one per octave, and the rest (8192 and more with 8 bins). Fewer than 8
        strata join the
    longest ones; 16 and more separate requests with an adapter (by hash when there is room for several classes).

    Args:
        tokens: Result of `uncached_tokens`.
        adapter_key: Stable 32-bit hash of the adapter's name, 0 for none.
        max_strata: Upper bound of the number of strata.

    >>> import numpy as np
    >>> stratum_of(np.array([100, 300, 600, 5000, 2**32 - 1], np.uint32), np.array([0, 0, 0, 0, 7], np.uint32), 16).tolist()
    [1, 2, 3, 6, 8]
    """
    lengths, classes = _split(max_strata)
    # The exponent bits of a float32 are the octave; rounding can only matter beyond 2**24 tokens, which the last bin holds too.
    octave = np.maximum(tokens, np.uint32(1)).astype(np.float32).view(np.int32)
    octave >>= 23
    octave -= 126
    length = np.clip(octave - (_FIRST_OCTAVE - 1), 1, _LENGTHS - 1)
    length[tokens == UNKNOWN_TOKENS] = 0
    np.minimum(length, lengths - 1, out=length)
    if classes > 1 and adapter_key.any():
        length += lengths * np.where(adapter_key == 0, 0, 1 + adapter_key.astype(np.int64) % (classes - 1)).astype(length.dtype)
    return np.asarray(length.astype(np.uint8))
