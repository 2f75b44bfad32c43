"""BALANCE: accept whoever is near, in a radius that shrinks over the rounds.

References
----------
Fang et al., Byzantine-robust decentralized federated learning, CCS 2024, arXiv 2406.10416.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.robust.vectors import Vector, Vectors, check, distances, mean


def balance(
    own_p: Vector,
    peers_kp: Vectors,
    *,
    round: int,
    rounds: int,
    gamma: float,
    kappa: float,
    alpha: float,
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return ``alpha x_i + (1 - alpha) mean_S x_j`` and who is in S.

    ``S = { j : ||x_i - x_j|| <= gamma exp(-kappa t / T) ||x_i|| }``. With S empty the own model
    stays; dividing by |S| + 1 instead, as a later comparison did, shrinks every model.

    Parameters
    ----------
    own_p, peers_kp
        See `fedapp.robust`.
    round, rounds : int
        t and T, t from 0.
    gamma, kappa, alpha : float
        In the paper's experiments 0.3, 1 and 0.5.

    Returns
    -------
    model : ndarray, shape (P,)
    accepted : ndarray of bool, shape (K,)
    """
    check(peers_kp, own_p)
    radius = gamma * math.exp(-kappa * round / rounds) * _norm(own_p)
    accepted_k = distances(own_p, peers_kp) <= radius
    if not accepted_k.any():
        return own_p, accepted_k
    mixed = alpha * own_p + (1 - alpha) * mean(peers_kp[accepted_k])
    return mixed.astype(own_p.dtype), accepted_k


def _norm(x: NDArray[np.floating[Any]]) -> float:
    return float(np.linalg.norm(x.astype(np.float64)))
