"""Self-centred clipping (ClippedGossip) as a peer rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.base import Context, Mixed, Neighbour
from fedapp.peer_rules.vectors import as_vectors, relative_distances, verdicts
from fedapp.robust.clipping import adaptive_radius, metropolis_weights, self_centred_clipping
from fedapp.robust.vectors import distances, from_vector


class Clipping:
    """Everybody counts, nobody moves the model far, see `fedapp.robust.clipping`.

    A neighbour's weight in the verdicts is what clipping leaves of its entry in the mixing matrix.
    """

    def __init__(self, config: RunConfig) -> None:
        self._radius = config.clipping.radius

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`."""
        if not neighbours:
            return Mixed(own, 1.0, ())
        own_p, peers_kp = as_vectors(own, neighbours)
        weights_k = np.array(_weights(neighbours, context))
        distances_k = distances(own_p, peers_kp)
        radius = self._radius or adaptive_radius(distances_k)
        with np.errstate(divide="ignore"):  # who is where the own model is, is not clipped
            kept_k = weights_k * np.minimum(1.0, radius / distances_k)
        kept_k = np.where(distances_k > 0, kept_k, weights_k)
        mixed_p = self_centred_clipping(own_p, peers_kp, radius, weights_k.tolist())
        far = relative_distances(own_p, peers_kp)
        told = verdicts(neighbours, kept_k.tolist(), "clipped", far)
        return Mixed(from_vector(mixed_p, own), 1.0 - float(kept_k.sum()), told)


def _weights(neighbours: Sequence[Neighbour], context: Context) -> list[float]:
    """Return the row of the mixing matrix: Metropolis, or a complete graph's if none is known."""
    degrees = context.degrees
    if context.site not in degrees or any(one.name not in degrees for one in neighbours):
        return [1 / (len(neighbours) + 1)] * len(neighbours)
    return metropolis_weights(degrees[context.site], [degrees[one.name] for one in neighbours])
