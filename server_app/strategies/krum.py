"""Krum and Multi-Krum."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.robust.krum import krum, largest_faulty, multi_krum
from fedapp.robust.vectors import Vector, Vectors
from server_app.strategies.robust import Robust, Weights
from server_app.updates import Update


class Krum(Robust):
    """The one update that is nearest to its ``n - f - 2`` nearest becomes the model.

    Flower's Krum chooses the same where f + 3 updates are there; with fewer, which the rule has no
    value for, it goes on with one distance.

    References
    ----------
    Blanchard et al., Machine learning with adversaries, NeurIPS 2017.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, Weights]:
        """Return the chosen update."""
        faulty = self.config.krum.faulty or largest_faulty(len(updates))
        model_p, chosen = krum(models_kp, faulty)
        return model_p, [float(index == chosen) for index in range(len(updates))]


class MultiKrum(Robust):
    """The plain mean of the m updates that are nearest to their nearest.

    Flower's MultiKrum weighs the chosen ones by their records; the paper does not.

    References
    ----------
    As `Krum`.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, Weights]:
        """Return the mean of the chosen updates."""
        settings, sites = self.config.multi_krum, len(updates)
        faulty = settings.faulty or largest_faulty(sites)
        count = min(settings.selected or sites - faulty, sites)
        model_p, accepted_k = multi_krum(models_kp, faulty, count)
        return model_p, [float(accepted) / count for accepted in accepted_k]
