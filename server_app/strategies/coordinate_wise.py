"""Median and trimmed mean, number by number."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.robust.median import median
from fedapp.robust.trimmed_mean import trimmed_mean
from fedapp.robust.vectors import Vector, Vectors
from server_app.strategies.robust import Robust
from server_app.updates import Update


class Median(Robust):
    """The median of every number: the same bits as Flower's ``FedMedian``.

    References
    ----------
    Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, arXiv 1803.01498.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, None]:
        """Return the median."""
        return median(models_kp), None


class TrimmedMean(Robust):
    """The mean of every number without the largest and smallest ``floor(beta n)`` of it.

    Flower's ``FedTrimmedAvg`` gives the same numbers to rounding.

    References
    ----------
    As `Median`.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, None]:
        """Return the trimmed mean."""
        trim = int(self.config.trimmed_mean.beta * len(updates))
        return trimmed_mean(models_kp, trim), None
