"""Models of a round as the vectors that the robust rules take, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter
from fedapp.peer_rules.base import Neighbour, Verdict
from fedapp.robust.vectors import Double, Vector, Vectors, distances, to_vector


def as_vectors(own: Adapter, neighbours: Sequence[Neighbour]) -> tuple[Vector, Vectors]:
    """Return the own model (P,) and the neighbours' (K, P), see `fedapp.robust.vectors`."""
    own_p = to_vector(own)
    if not neighbours:
        return own_p, np.zeros((0, len(own_p)), own_p.dtype)
    return own_p, np.stack([to_vector(neighbour.model) for neighbour in neighbours])


def relative_distances(own_p: Vector, peers_kp: Vectors) -> Double:
    """Return ``||x_j - x_i|| / ||x_i||`` for every peer, (K,); infinite if the own model is 0."""
    norm = float(np.linalg.norm(own_p.astype(np.float64)))
    distances_k = distances(own_p, peers_kp)
    return distances_k / norm if norm else np.full(len(peers_kp), np.inf)


def verdicts(
    neighbours: Sequence[Neighbour],
    weights_k: Sequence[float],
    why: str,
    distances_k: Double | None = None,
) -> tuple[Verdict, ...]:
    """Return the verdicts; a neighbour without weight was refused by ``why``."""
    return tuple(
        Verdict(
            neighbour.name,
            weight > 0,
            float(weight),
            () if weight > 0 else (why,),
            {} if distances_k is None else {"distance": float(distances_k[index])},
        )
        for index, (neighbour, weight) in enumerate(zip(neighbours, weights_k, strict=True))
    )
