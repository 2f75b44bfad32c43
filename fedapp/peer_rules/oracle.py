"""The rule that knows who is faulty: what no rule can know, and every rule is measured by."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peer_rules.average import Average
from fedapp.peer_rules.base import Context, Mixed, Neighbour, Verdict


class Oracle:
    """The mean of the own model and those of neighbours that ``faults.sites`` does not name."""

    def __init__(self, config: RunConfig) -> None:
        self._faulty, self._average = set(config.faults.sites), Average(config)

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`."""
        honest = [one for one in neighbours if one.name not in self._faulty]
        mixed = self._average.mix(own, honest, context)
        known = {verdict.peer: verdict for verdict in mixed.verdicts}
        every = (
            known.get(one.name, Verdict(one.name, False, refused_by=("oracle",)))
            for one in neighbours
        )
        return Mixed(mixed.model, mixed.own_weight, tuple(every))
