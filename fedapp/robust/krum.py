"""Krum: the model nearest to its nearest; Multi-Krum: the mean of several such.

References
----------
Blanchard et al., Machine learning with adversaries, NeurIPS 2017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedapp.robust.vectors import Double, Vector, Vectors, check, distances, mean


def largest_faulty(sites: int) -> int:
    """Return the largest f for which Krum's proof holds: ``n >= 2 f + 3``."""
    return max(0, (sites - 3) // 2)


def krum_scores(vectors_kp: Vectors, faulty: int) -> Double:
    """Return for every model the sum of its ``n - f - 2`` smallest squared distances to others.

    Raises
    ------
    ValueError
        If that is no distance at all, ``n < f + 3``. Beyond `largest_faulty` there is a score but
        no guarantee.
    """
    check(vectors_kp)
    sites = len(vectors_kp)
    if faulty < 0 or sites - faulty - 2 < 1:
        raise ValueError(
            f"Krum needs at least f + 3 models and f >= 0, got {sites} and f = {faulty}"
        )
    scores = np.empty(sites)
    for index, vector_p in enumerate(vectors_kp):
        others = np.delete(distances(vector_p, vectors_kp), index)
        scores[index] = np.sum(np.sort(others)[: sites - faulty - 2] ** 2)
    return scores


def krum(vectors_kp: Vectors, faulty: int) -> tuple[Vector, int]:
    """Return the model of the smallest score, and which it is."""
    chosen = int(krum_scores(vectors_kp, faulty).argmin())
    return vectors_kp[chosen].copy(), chosen


def multi_krum(vectors_kp: Vectors, faulty: int, count: int) -> tuple[Vector, NDArray[np.bool_]]:
    """Return the mean of the ``count`` models of the smallest scores, and which they are.

    Scores are taken once, over all models; count 1 is Krum.
    """
    order = np.argsort(krum_scores(vectors_kp, faulty), kind="stable")
    if not 1 <= count <= len(order):
        raise ValueError(f"count must be within 1..{len(order)}, got {count}")
    accepted_k = np.zeros(len(vectors_kp), dtype=bool)
    accepted_k[order[:count]] = True
    return mean(vectors_kp[accepted_k]).astype(vectors_kp.dtype), accepted_k
