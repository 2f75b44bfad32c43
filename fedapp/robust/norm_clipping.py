"""Norm clipping: no site's update counts for more than a bound.

References
----------
Sun et al., Can you really backdoor federated learning?, arXiv 1911.07963.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.robust.vectors import Double, Vector, Vectors, check, distances


def norm_clipping(
    updates_kp: Vectors, weights_k: Sequence[float], bound: float | None = None
) -> tuple[Vector, Double]:
    """Return ``sum_k p_k g_k min(1, bound / ||g_k||)`` and what is left of each update.

    Parameters
    ----------
    updates_kp : ndarray, shape (K, P)
        Changes since the round began, not models.
    weights_k : sequence of float
        Divided by their sum.
    bound : float, optional
        Without one, the median of the norms.

    Returns
    -------
    update : ndarray, shape (P,)
    left : ndarray, shape (K,)
        Factors in (0, 1].
    """
    check(updates_kp)
    norms_k = distances(np.zeros_like(updates_kp[0]), updates_kp)
    limit = float(np.median(norms_k)) if bound is None else bound
    left_k = np.array([min(1.0, limit / norm) if norm > 0 else 1.0 for norm in norms_k])
    total = np.zeros(updates_kp.shape[1])
    for weight, left, update_p in zip(weights_k, left_k, updates_kp, strict=True):
        total += weight / sum(weights_k) * left * update_p.astype(np.float64)
    return total.astype(updates_kp.dtype), left_k
