"""Coordinate-wise median; of an even number the mean of the middle two.

References
----------
Yin et al., Byzantine-robust distributed learning, ICML 2018.
"""

from __future__ import annotations

import numpy as np

from fedapp.robust.vectors import Vector, Vectors, check


def median(vectors_kp: Vectors) -> Vector:
    """Return the median of every number, as Flower's FedMedian."""
    check(vectors_kp)
    return np.asarray(np.median(vectors_kp, axis=0), dtype=vectors_kp.dtype)
