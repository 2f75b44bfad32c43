"""FLTrust: updates count as far as they point where a trusted one does, and at its length.

References
----------
Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, NDSS 2021,
arXiv 2012.13995.
"""

from __future__ import annotations

import numpy as np

from fedapp.robust.vectors import Double, Vector, Vectors, check


def fltrust(trusted_p: Vector, updates_kp: Vectors) -> tuple[Vector, Double]:
    """Return ``sum_j TS_j (||g_0|| / ||g_j||) g_j / sum_j TS_j`` and the trust scores.

    ``TS_j = max(0, cos(g_j, g_0))``. With nobody trusted the update is zero, and the model stays.

    Parameters
    ----------
    trusted_p : ndarray, shape (P,)
        ``g_0``, of the coordinator's own records; among peers, a site's own update.
    updates_kp : ndarray, shape (K, P)
        Changes since the round began, not models. One that is zero is not trusted.

    Returns
    -------
    update : ndarray, shape (P,)
    trust : ndarray, shape (K,)
        In [0, 1].
    """
    check(updates_kp, trusted_p)
    trusted = trusted_p.astype(np.float64)
    length = float(np.linalg.norm(trusted))
    trust_k = np.zeros(len(updates_kp))
    total = np.zeros_like(trusted)
    for index, update_p in enumerate(updates_kp):
        update = update_p.astype(np.float64)
        norm = float(np.linalg.norm(update))
        if norm == 0 or length == 0:
            continue
        trust_k[index] = np.clip(update @ trusted / (norm * length), 0.0, 1.0)
        total += trust_k[index] * (length / norm) * update
    if trust_k.any():
        total /= trust_k.sum()
    return total.astype(trusted_p.dtype), trust_k
