"""BALANCE as a peer rule."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.base import Context, Mixed, Neighbour
from fedapp.peer_rules.vectors import as_vectors, relative_distances, verdicts
from fedapp.robust.balance import balance
from fedapp.robust.vectors import from_vector


class Balance:
    """Accept whoever is near in a radius that shrinks, see `fedapp.robust.balance`."""

    def __init__(self, config: RunConfig) -> None:
        self._settings, self._rounds = config.balance, config.federation.rounds

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`."""
        own_p, peers_kp = as_vectors(own, neighbours)
        settings = self._settings
        mixed_p, accepted_k = balance(
            own_p,
            peers_kp,
            round=context.round - 1,
            rounds=self._rounds,
            gamma=settings.gamma,
            kappa=settings.kappa,
            alpha=settings.alpha,
        )
        far = relative_distances(own_p, peers_kp)
        if not accepted_k.any():
            return Mixed(own, 1.0, verdicts(neighbours, [0.0] * len(neighbours), "distance", far))
        each = (1 - settings.alpha) / int(accepted_k.sum())
        weights = [each if accepted else 0.0 for accepted in accepted_k]
        model = from_vector(mixed_p, own)
        return Mixed(model, settings.alpha, verdicts(neighbours, weights, "distance", far))
