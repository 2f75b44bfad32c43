"""No exchange: what a site learns by itself, round by round."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.base import Context, Mixed, Neighbour
from fedapp.peer_rules.vectors import verdicts


class Alone:
    """The own model, whatever others send: the floor that every rule must reach."""

    def __init__(self, config: RunConfig) -> None: ...

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`."""
        return Mixed(own, 1.0, verdicts(neighbours, [0.0] * len(neighbours), "alone"))
