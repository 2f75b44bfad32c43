"""Plain gossip: the mean of the own model and all neighbours'. It withstands nothing."""

from __future__ import annotations

from fedapp.robust.vectors import Vector, Vectors, check, mean


def gossip_average(own_p: Vector, peers_kp: Vectors) -> Vector:
    """Return ``(x_i + sum_j x_j) / (K + 1)``."""
    check(peers_kp, own_p)
    peers = len(peers_kp)
    if not peers:
        return own_p
    return ((own_p + peers * mean(peers_kp)) / (peers + 1)).astype(own_p.dtype)
