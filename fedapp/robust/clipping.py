"""Self-centred clipping (ClippedGossip): every peer counts, none moves the model far.

References
----------
He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip,
arXiv 2202.01545.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.robust.vectors import Double, Vector, Vectors, check, distances


def self_centred_clipping(
    own_p: Vector,
    peers_kp: Vectors,
    radius: float | None = None,
    weights_k: Sequence[float] | None = None,
) -> Vector:
    """Return ``x_i + sum_j W_ij clip(x_j - x_i, radius)``.

    ``clip(v, tau) = v min(1, tau / ||v||)``: the difference is clipped, not the peer's weights.

    Parameters
    ----------
    own_p, peers_kp
        See `fedapp.robust`.
    radius : float, optional
        Without one, `adaptive_radius`.
    weights_k : sequence of float, optional
        The row of the mixing matrix, see `metropolis_weights`. Without one, 1 / (K + 1): a
        complete graph.
    """
    check(peers_kp, own_p)
    peers = len(peers_kp)
    distances_k = distances(own_p, peers_kp)
    limit = adaptive_radius(distances_k) if radius is None else radius
    weights = [1 / (peers + 1)] * peers if weights_k is None else weights_k
    own = own_p.astype(np.float64)
    moved = own.copy()
    for weight, peer_p, distance in zip(weights, peers_kp, distances_k, strict=True):
        shrink = min(1.0, limit / distance) if distance > 0 else 1.0
        moved += weight * shrink * (peer_p - own)
    return moved.astype(own_p.dtype)


def adaptive_radius(distances_k: Double) -> float:
    """Return the second largest distance, or of one peer its own; 0 without peers.

    It is the radius of the authors' code where none is given. One peer at most is clipped by it:
    it is meant for one faulty neighbour.
    """
    return float(np.sort(distances_k)[-2:][0]) if len(distances_k) else 0.0


def metropolis_weights(degree: int, degrees_k: Sequence[int]) -> list[float]:
    """Return ``W_ij = 1 / (1 + max(d_i, d_j))`` for every neighbour, by numbers of neighbours."""
    return [1 / (1 + max(degree, other)) for other in degrees_k]
