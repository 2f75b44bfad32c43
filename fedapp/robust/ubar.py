"""UBAR (Mozi): of the nearest peers, those whose loss on own records is not worse.

References
----------
Guo et al., Towards Byzantine-resilient learning in decentralized systems, arXiv 2002.08569.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedapp.robust.vectors import Vector, Vectors, check, distances, mean


def nearest(own_p: Vector, peers_kp: Vectors, rho: float) -> NDArray[np.int64]:
    """Return the ``floor(rho K)`` nearest peers, at least one, nearest first.

    Parameters
    ----------
    own_p, peers_kp
        See `fedapp.robust`.
    rho : float
        In (0, 1]: the share of neighbours presumed honest.
    """
    if not 0 < rho <= 1:
        raise ValueError(f"rho must be in (0, 1], got {rho}")
    check(peers_kp, own_p)
    order = np.argsort(distances(own_p, peers_kp), kind="stable")
    return order[: max(1, int(rho * len(peers_kp)))].astype(np.int64)


def not_worse(
    candidates: NDArray[np.int64], losses: NDArray[np.float64], own_loss: float
) -> NDArray[np.int64]:
    """Return the candidates with a loss of at most the own one, else the nearest alone.

    Parameters
    ----------
    candidates : ndarray of int
        From `nearest`.
    losses : ndarray, the shape of candidates
        Theirs on the own batch; NaN is worse than anything.
    own_loss : float
    """
    kept = candidates[losses <= own_loss]
    return kept if len(kept) else candidates[:1]


def ubar(
    own_p: Vector,
    peers_kp: Vectors,
    loss: Callable[[Vector], float],
    *,
    rho: float,
    alpha: float,
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return ``alpha x_i + (1 - alpha) mean_S x_j`` and who is in S; without peers the own model.

    The paper's step along the gradient is the local training that goes before.

    Parameters
    ----------
    own_p, peers_kp
        See `fedapp.robust`.
    loss : callable
        Of a model, on a batch of own records. Asked for the own model and the nearest alone.
    rho, alpha : float
        See `nearest`; the weight of the own model.
    """
    accepted_k = np.zeros(len(peers_kp), dtype=bool)
    candidates = nearest(own_p, peers_kp, rho)
    if not len(candidates):
        return own_p, accepted_k
    losses = np.array([loss(peers_kp[index]) for index in candidates])
    accepted_k[not_worse(candidates, losses, loss(own_p))] = True
    mixed = alpha * own_p + (1 - alpha) * mean(peers_kp[accepted_k])
    return mixed.astype(own_p.dtype), accepted_k
