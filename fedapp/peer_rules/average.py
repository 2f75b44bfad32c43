"""Plain gossip: everybody counts alike."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.base import Context, Mixed, Neighbour
from fedapp.peer_rules.vectors import as_vectors, verdicts
from fedapp.robust.average import gossip_average
from fedapp.robust.vectors import from_vector


class Average:
    """The mean of the own model and all neighbours', see `fedapp.robust.average`."""

    def __init__(self, config: RunConfig) -> None: ...

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`."""
        if not neighbours:
            return Mixed(own, 1.0, ())
        share = 1 / (len(neighbours) + 1)
        model = from_vector(gossip_average(*as_vectors(own, neighbours)), own)
        return Mixed(model, share, verdicts(neighbours, [share] * len(neighbours), ""))
