"""Which rows a kernel is of, where a model answers for tokens or pixels (numpy, pure).

A token-level head and a 1 x 1 convolution are one linear layer applied at every position: with
positions as rows `fedapp.ntk` serves them as it stands. Both models must be asked at the same
positions, so these are chosen once, from what belongs to the records and not to a model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedapp.subspaces import Seed


def select_positions(valid: NDArray[np.bool_], limit: int, seed: Seed) -> NDArray[np.int64]:
    """Return at most ``limit`` valid positions, a seeded choice without repetition.

    Parameters
    ----------
    valid : ndarray of bool, any shape
        Whether a position counts: (records, tokens) without padding and prompt, or
        (records, height, width).
    limit : int
        At least 1.
    seed : int or sequence of int

    Returns
    -------
    ndarray of int64, shape (n,)
        Ascending, into the flattened ``valid``.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    candidates = np.flatnonzero(valid)
    if len(candidates) > limit:
        chosen = np.random.default_rng(seed).choice(len(candidates), limit, replace=False)
        candidates = candidates[np.sort(chosen)]
    return candidates.astype(np.int64)
