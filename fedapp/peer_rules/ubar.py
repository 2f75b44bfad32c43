"""UBAR as a peer rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.base import Context, Mixed, Neighbour
from fedapp.peer_rules.vectors import as_vectors, relative_distances, verdicts
from fedapp.robust.ubar import nearest, ubar
from fedapp.robust.vectors import Vector, from_vector


class Ubar:
    """Of the nearest, those of no worse loss on own records, see `fedapp.robust.ubar`."""

    def __init__(self, config: RunConfig) -> None:
        self._settings = config.ubar

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`; a forward pass for each of the nearest."""
        if not neighbours:
            return Mixed(own, 1.0, ())
        own_p, peers_kp = as_vectors(own, neighbours)

        def loss(model_p: Vector) -> float:
            return context.loss(from_vector(model_p, own))

        alpha = self._settings.alpha
        mixed_p, accepted_k = ubar(own_p, peers_kp, loss, rho=self._settings.rho, alpha=alpha)
        each = (1 - alpha) / int(accepted_k.sum())
        weights = [each if accepted else 0.0 for accepted in accepted_k]
        far = relative_distances(own_p, peers_kp)
        told = list(verdicts(neighbours, weights, "distance", far))
        for index in nearest(own_p, peers_kp, self._settings.rho):
            if not accepted_k[index]:
                told[index] = replace(told[index], refused_by=("loss",))
        return Mixed(from_vector(mixed_p, own), alpha, tuple(told))
