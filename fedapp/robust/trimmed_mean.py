"""Coordinate-wise trimmed mean: every number without its largest and smallest.

References
----------
Yin et al., Byzantine-robust distributed learning, ICML 2018.
"""

from __future__ import annotations

import numpy as np

from fedapp.robust.vectors import Vector, Vectors, check, mean


def trimmed_mean(vectors_kp: Vectors, trim: int) -> Vector:
    """Return for every number the mean of what is left without ``trim`` at either end.

    Parameters
    ----------
    vectors_kp : ndarray, shape (K, P)
    trim : int
        As many as are presumed faulty; ``2 trim < K``.
    """
    check(vectors_kp)
    sites = len(vectors_kp)
    if not 0 <= 2 * trim < sites:
        raise ValueError(f"of {sites} models {trim} cannot be trimmed at either end")
    ordered = np.sort(vectors_kp, axis=0)
    return mean(ordered[trim : sites - trim]).astype(vectors_kp.dtype)
